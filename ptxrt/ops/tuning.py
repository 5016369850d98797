"""The search for tuned choices: each variant and config on the device, its result checked, and then timed.

Nothing here runs unasked: ``ptxrt tune`` does it, docs/tuning.md tells how.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ptxrt import ops
from ptxrt._version import __version__
from ptxrt.compilers.ptx_text import suggestion
from ptxrt.dtypes import BY_NAME
from ptxrt.errors import InvalidArgument, Unsupported, shown
from ptxrt.ops.framework import Plan, PlanPreference, tuned
from ptxrt.ops.framework.plan import preferred_language
from ptxrt.ops.trials import Trial
from ptxrt.runtime.array import empty
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.layout import channels_last, checked_shape, contiguous
from ptxrt.runtime.stream import Event

__all__ = ["Clock", "events_of", "heuristic", "medians_of", "plan_of", "problem_of", "tune"]

Clock = Callable[[Plan[Any, Any, Any], Callable[[], object]], float]
"""Given a plan, and what runs it once on the default stream: runs it, and returns how many microseconds it took."""

_FLUSHED = 256 << 20  # bytes; several times any L2
_MARGIN = 1.01  # by which something is faster than the heuristic's choice, or that stays: less is noise


def events_of(device: Device) -> Clock:
    """Return the clock of a device: events around the work, what was in its caches overwritten before.

    That also keeps the device busy while the host gives it the work, whose own time is not counted so.
    """
    flushed = 1 if device.kind == "sim" else min(_FLUSHED, device.properties.total_memory // 8)
    other = empty(flushed, np.uint8, device)
    start, end = Event(device), Event(device)

    def clock(plan: Plan[Any, Any, Any], run: Callable[[], object]) -> float:
        stream = plan.device.default_stream
        other.fill_bytes(0, stream)
        stream.record(start)
        run()
        stream.record(end)
        return start.elapsed_ms(end) * 1e3

    return clock


# Problems ---------------------------------------------------------------------------------------------------------


def problem_of(words: Mapping[str, Any]) -> Any:
    """Return the descriptor of a problem that is told in words.

    Parameters
    ----------
    words
        ``op``, and the fields of its descriptor by name, those with a default as wanted; sizes are ints and lists of
        them. ``dtype`` is an element type's name. ``layout``, ``"contiguous"`` or ``"channels-last"``, stands for
        strides.

    Raises
    ------
    InvalidArgument
        For an op or a field that there is not, for a field that is missing, for a problem without elements.
    PtxrtError
        What the descriptor has against the problem.
    """
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in words.items()}
    kind = plan_of(given.pop("op", None)).descriptor_type
    known = {field.name: field for field in fields(kind)}
    choosable = [*known, *(["layout"] if "strides" in known else [])]
    for name, value in given.items():
        if name not in choosable:
            raise InvalidArgument(
                op=kind.op,
                argument=shown(name),
                expected=f"a field of its problems: {', '.join(choosable)}",
                given=shown(value),
                fix=suggestion(name, choosable) if isinstance(name, str) else None,
            )
    if "strides" in known and "shape" in given:
        layouts = {"contiguous": contiguous, "channels-last": channels_last}
        layout = given.pop("layout", "contiguous")
        if not isinstance(layout, str) or layout not in layouts:
            raise InvalidArgument(op=kind.op, argument="layout", expected=" or ".join(layouts), given=shown(layout))
        given.setdefault("strides", layouts[layout](checked_shape(given["shape"], kind.op)))
    if isinstance(given.get("dtype"), str):
        if given["dtype"] not in BY_NAME:
            raise InvalidArgument(
                op=kind.op, argument="dtype", expected=" or ".join(kind.types), given=shown(given["dtype"])
            )
        given["dtype"] = BY_NAME[given["dtype"]]
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in given]:
        raise InvalidArgument(
            op=kind.op, argument=missing[0], expected=f"a value; the problem needs {', '.join(missing)}", given="none"
        )
    problem = kind(**given)
    if problem.empty:
        raise InvalidArgument(op=kind.op, argument="shape", expected="a problem with elements", given=shown(problem))
    return problem


def plan_of(op: object) -> type[Plan[Any, Any, Any]]:
    """Return the class of an op's plans; InvalidArgument where there is none of that name."""
    plans = {plan.op: plan for plan in ops.plans()}
    if not isinstance(op, str) or op not in plans:
        raise InvalidArgument(
            op="tune",
            argument="op",
            expected=f"one of {', '.join(plans)}",
            given=shown(op),
            fix=suggestion(op, plans) if isinstance(op, str) else None,
        )
    return plans[op]


def _words_of(problem: Any) -> dict[str, Any]:
    """Return what :func:`problem_of` makes the problem of."""
    words = {field.name: getattr(problem, field.name) for field in fields(problem)}
    words |= {"op": problem.op, "dtype": problem.dtype.name}
    if (layout := tuned.layout_of(problem)) != "strided" and words.pop("strides", ()):
        words["layout"] = layout
    return {name: list(value) if isinstance(value, tuple) else value for name, value in words.items()}


# The search -------------------------------------------------------------------------------------------------------


def heuristic(device: Device | str | None, problem: Any, language: str | None = None) -> Plan[Any, Any, Any]:
    """Return the plan that is selected where nothing is tuned.

    Parameters
    ----------
    device, problem
        A device, and a descriptor of any op.
    language
        What PTXRT_LANGUAGE says if left out, else the one that the device takes first.

    Raises
    ------
    Unsupported
        If there is none.
    """
    device = as_device(device)
    language = language or preferred_language() or device.backend.languages[0]
    return plan_of(problem.op).select(device, problem, PlanPreference(language=language, tuned=False))


def tune(
    device: Device | str | None,
    problem: Any,
    *,
    language: str | None = None,
    rounds: int = 25,
    clock: Clock | None = None,
) -> tuned.Choice:
    """Return what is the fastest on a device, of all that promises what the heuristic's choice promises.

    The heuristic's choice stays where nothing is faster by more than 1 %.

    Parameters
    ----------
    device, problem, language
        As :func:`heuristic` takes them.
    rounds
        Runs of each candidate that count.
    clock
        What times a run; events of the device's stream if left out.

    Raises
    ------
    WrongResult
        If a candidate computes something else than the op's reference; nothing has been timed then.
    Unsupported
        If no variant takes the problem.
    InvalidArgument
        If `rounds` is below 1.
    """
    if rounds < 1:
        raise InvalidArgument(op="tune", argument="rounds", expected="at least 1", given=shown(rounds))
    first = heuristic(device, problem, language)
    device, language = first.device, first.variant.language
    candidates = _candidates(first)
    medians = medians_of(Trial(first), candidates, rounds, clock or events_of(device))
    best = min(range(len(medians)), key=medians.__getitem__)
    if medians[0] <= _MARGIN * medians[best]:
        best = 0
    measured = {
        "problem": _words_of(problem),
        "microseconds": medians[best],
        "heuristic_microseconds": medians[0],
        "candidates": [{**_choice(plan), "microseconds": us} for plan, us in zip(candidates, medians, strict=True)],
        "rounds": rounds,
        "driver": device.properties.driver,
        "compiler": device.backend.compiler(language),
        "ptxrt": __version__,
        "numpy": np.__version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    launches = [launch for plan in candidates for launch in plan.schedule.launches]
    return tuned.Choice(
        tuned.Key.of(device, problem.op, problem, language),
        **_choice(candidates[best]),
        among=tuple(each.name for each in first.variants if each.language == language),
        kernels=tuned.texts(sorted({f"{each.kernel.family}.{each.kernel.language}" for each in launches})),
        measured=measured,
    )


def medians_of(trial: Trial, plans: Sequence[Plan[Any, Any, Any]], rounds: int, clock: Clock) -> list[float]:
    """Return how many microseconds each plan of a trial's problem takes, the median of so many runs.

    The plans take turns, a run of each in a round, so that a drift of the clocks hits all alike.

    Raises
    ------
    WrongResult
        If a plan computes something else than the op's reference; nothing has been timed then.
    """
    for plan in plans:
        trial.check(plan)
    runs = [(plan, trial.run_of(plan)) for plan in plans]
    order = range(len(runs))
    times: list[list[float]] = [[] for _ in order]
    for turn in range(-(rounds // 8), rounds):  # those below 0 to warm up
        for i in order if turn % 2 else reversed(order):
            took = clock(*runs[i])
            if turn >= 0:
                times[i].append(took)
    return [statistics.median(each) for each in times]


def _choice(plan: Plan[Any, Any, Any]) -> dict[str, Any]:
    return {"variant": plan.variant.name, "config": asdict(plan.config)}


def _candidates(first: Plan[Any, Any, Any]) -> list[Plan[Any, Any, Any]]:
    """Return the heuristic's choice, and behind it all others that run the problem and promise as much."""
    found = [first]
    for variant in first.variants:
        if variant.language != first.variant.language:
            continue
        for config in variant.config_type.candidates(first.descriptor):
            wish = PlanPreference(language=variant.language, variant=variant.name, config=config)
            try:
                plan = first.select(first.device, first.descriptor, wish)
            except Unsupported:
                continue
            same = (variant, config) == (first.variant, first.config)
            if not same and plan.precision_guarantee.as_good_as(first.precision_guarantee):
                found.append(plan)
    return found

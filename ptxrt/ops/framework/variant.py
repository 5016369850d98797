"""Variant: one way to run an op, in one language; and what a caller may want of the variant that is selected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from ptxrt.errors import InvalidArgument, shown
from ptxrt.ops.framework.schedule import Config, Limits, Refusal, Schedule

__all__ = ["PlanKey", "PlanPreference", "Variant"]

ProblemT = TypeVar("ProblemT")
ConfigT = TypeVar("ConfigT", bound=Config)


class Variant(ABC, Generic[ProblemT, ConfigT]):
    """One way to run an op: a name, a language, and the schedule of a problem.

    A subclass sets `name`, and `config_type` where it has knobs. A plan lists instances of it, one a language.

    Parameters
    ----------
    language
        Of its entries, ``"ptx"`` or ``"hip"``.
    """

    name: ClassVar[str]
    config_type: type[ConfigT] = Config  # type: ignore[assignment]  # of a variant without knobs

    def __init__(self, language: str = "ptx") -> None:
        self.language = language

    def __repr__(self) -> str:
        return f"{self.language}/{self.name}"

    def suits(self, problem: ProblemT) -> bool:
        """Return whether to select it before the variants behind it.

        One that can run a problem and does not suit it is selected where no other can run it, and by name.
        """
        del problem
        return True

    def heuristic(self, problem: ProblemT) -> ConfigT:
        """Return the config where a preference names none: the config's own, unless the language counts."""
        return self.config_type.heuristic(problem)  # type: ignore[return-value]  # a config returns its own type

    @abstractmethod
    def schedule(self, problem: ProblemT, config: ConfigT, limits: Limits) -> Schedule | Refusal:
        """Return how it runs a problem that has values, or why it cannot.

        The config may be another problem's candidate, since what was tuned serves a class of problems.
        What every schedule is held to (grids, shared memory, scalars that fit their parameters) need not be looked at
        here: :meth:`Schedule.refusal` does.
        """


@dataclass(frozen=True)
class PlanPreference:
    """What a plan must be.

    Attributes
    ----------
    deterministic
        Only variants whose results do not change from run to run.
    workspace_limit
        Most bytes of workspace; None for no limit.
    language
        ``"ptx"`` or ``"hip"``, or None for any.
    variant
        The only variant wanted, by name.
    config
        The knobs wanted; only variants that have them are selected, and no tuned choice is looked up. None for what was
        tuned, or each variant's own heuristic.
    tuned
        Whether a choice that ``ptxrt tune`` has stored for such a problem comes before the heuristics: docs/tuning.md.
    """

    deterministic: bool = False
    workspace_limit: int | None = None
    language: str | None = None
    variant: str | None = None
    config: Config | None = None
    tuned: bool = True

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "deterministic": (bool,),
            "workspace_limit": (int, type(None)),
            "language": (str, type(None)),
            "variant": (str, type(None)),
            "config": (self.config.__class__ if isinstance(self.config, Config) else Config, type(None)),
            "tuned": (bool,),
        }
        for name, allowed in kinds.items():
            value: Any = getattr(self, name)
            if value.__class__ not in allowed:
                expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
                raise InvalidArgument(op="PlanPreference", argument=name, expected=expected, given=shown(value))

    def refusal(self, variant: Variant[Any, Any]) -> str | None:
        """Return in words why it does not want a variant, or None."""
        if self.variant is not None and self.variant != variant.name:
            return f"not the variant asked for, {self.variant!r}"
        if self.language is not None and self.language != variant.language:
            return f"is in {variant.language}, not in {self.language!r}"
        if self.config is not None and self.config.__class__ is not variant.config_type:
            return f"takes a {variant.config_type.__name__}, not a {type(self.config).__name__}"
        return None

    def refusal_of(self, schedule: Schedule) -> str | None:
        """Return in words why it does not want a schedule, or None."""
        if self.deterministic and not schedule.guarantee.deterministic:
            return "is not deterministic"
        needs = schedule.workspace.size
        if self.workspace_limit is not None and needs > self.workspace_limit:
            return f"needs {needs} bytes of workspace, above the limit of {self.workspace_limit}"
        return None


class PlanKey(NamedTuple):
    """What a plan is, hashable."""

    category: str
    op: str
    element_type: str
    architecture: str
    backend: str
    variant: str
    language: str

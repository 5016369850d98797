"""A parsed function to basic blocks of steps."""

from __future__ import annotations

from ptxrt.sim._instructions import definition
from ptxrt.sim._instructions.builder import Builder, Frame
from ptxrt.sim._instructions.calls import give_back, receive
from ptxrt.sim._instructions.features import requirements
from ptxrt.sim._instructions.op import Op
from ptxrt.sim._instructions.unsupported import UNSUPPORTED
from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.call_stack import CALL_STACK_BYTES, LOCAL_STACK_BYTES
from ptxrt.sim._machine.code import Code, End
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.declarations import Module, align_up
from ptxrt.sim._text.syntax import Function, Instruction, Label

__all__ = ["decode"]


class _Decoder(Builder):
    """Decodes one entry."""

    def entry(self) -> None:
        """Decode the entry, and behind it the functions that are not inlined."""
        self.decode_body()
        while self._pending:
            callee = self._pending.pop()
            self.frame = Frame(callee.function, None, None)
            self.frame.outlined = callee
            self._place_variables(self.frame)
            self.bind(callee.start)
            receive(self, callee)
            self.decode_body()
        if self._outlined:
            self.code.lane_bytes += CALL_STACK_BYTES
        if any(callee.local_bytes for callee in self._outlined.values()):
            self.code.stack_base = align_up(self.code.local_bytes, 16)
            self.code.local_bytes = self.code.stack_base + LOCAL_STACK_BYTES

    def decode_body(self) -> None:
        """Decode the body of the current frame."""
        for item in self.frame.body.items:
            if isinstance(item, Label):
                self.bind(self.frame.labels[item.name, item.scope])
                continue
            define = definition(item)
            op = Op(self, item)
            if define is None:
                if item.name in UNSUPPORTED:
                    op.unsupported(item.opcode)
                op.fail(f"unknown instruction {item.name}")
            for what, target, version in requirements(item):
                op.needs(what, target, version)
            define(op)
        self.leave(None)

    def leave(self, ins: Instruction | None) -> None:
        """Close the block by leaving the function."""
        after, callee = self.frame.after, self.frame.outlined
        end: End
        if after is not None:
            target = after
            end = lambda m: target.block  # noqa: E731
        elif callee is not None:
            called = callee
            send = give_back(self, callee)

            def end(m: Machine) -> int:
                for step in send:
                    step(m)
                return m.calls.leave(m, called)

        else:
            end = lambda m: m.exit()  # noqa: E731
        if ins is None:
            self.close(end, None)
        else:
            self.end(ins, end)


def decode(module: Module, entry: Function) -> Code:
    """Check and decode one entry.

    Raises
    ------
    CompileError
        For an unknown instruction, modifier, register or label, or operands of the wrong type or number.
    Unsupported
        For instructions that the machine does not run.
    """
    decoder = _Decoder(module, entry)
    decoder.entry()
    if any(target.block == GONE for target in decoder.frame.labels.values()):
        raise RuntimeError("a label was left without a place")
    return decoder.code

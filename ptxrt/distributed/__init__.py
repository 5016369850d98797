"""Ranks that work on one batch together: what carries integers between them, and how it is found.

An op that takes `communicator` needs one thing of it, a sum of integers over all ranks. :class:`Communicator` says so;
:class:`Group` is one between threads of a process, on one device; :func:`as_communicator` makes one of NCCL's.
"""

from ptxrt.distributed._communicator import Communicator
from ptxrt.distributed._group import Group
from ptxrt.distributed._nccl import NcclCommunicator, as_communicator

__all__ = ["Communicator", "Group", "NcclCommunicator", "as_communicator"]

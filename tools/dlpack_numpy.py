#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NumPy and dtensor share memory through DLPack: a check for developers.

    tools/dlpack_numpy.py build/release/lib/libdtensor.so

Needs NumPy 2.1 or newer and the shared library (-DBUILD_SHARED_LIBS=ON). In a run of one rank NumPy
reads and writes a tensor's bytes in place, in both forms of DLPack, keeps them after the run, and a
tensor lies in an array of NumPy's; strided and read-only arrays are refused and copied.
"""
import ctypes
import sys

import numpy

c = ctypes
lib = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else "build/release/lib/libdtensor.so")
api = c.pythonapi
api.PyCapsule_New.restype = c.py_object
api.PyCapsule_New.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
api.PyCapsule_GetPointer.restype = c.c_void_p
api.PyCapsule_GetPointer.argtypes = [c.py_object, c.c_char_p]
api.PyCapsule_SetName.argtypes = [c.py_object, c.c_char_p]

F32, NEVER, IF_NEEDED = 0, 0, 1
USED = b"used_dltensor_versioned"  # kept: capsules point to it
NAMES = {True: b"dltensor_versioned", False: b"dltensor"}


class Error(Exception):
    pass


class Placement(c.Structure):  # dt_placement; all zeros is Replicate
    _fields_ = [("kind", c.c_int), ("axis", c.c_int), ("reduce", c.c_int), ("replicas", c.c_int),
                ("unit", c.c_int64), ("order", c.c_int), ("n_offsets", c.c_int), ("n_blocks", c.c_int),
                ("offsets", c.c_void_p), ("blocks", c.c_void_p), ("units", c.c_void_p)]


def check(status):
    if status != 0:
        raise Error(status)


class Exported:
    """What numpy.from_dlpack() takes: one rank's piece."""

    def __init__(self, tensor, versioned):
        self.tensor, self.versioned = tensor, versioned

    def __dlpack__(self, **asked):
        out = c.c_void_p()
        make = lib.dt_to_dlpack if self.versioned else lib.dt_to_dlpack_old
        check(make(self.tensor, c.byref(out)))
        return api.PyCapsule_New(out, NAMES[self.versioned], None)  # a consumer takes it over

    def __dlpack_device__(self):
        return (1, 0)


def taken(array, mesh, copy):
    """A tensor over an array of NumPy's."""
    capsule = array.__dlpack__(max_version=(1, 0))
    out, shape = c.c_void_p(), (c.c_int64 * array.ndim)(*array.shape)
    pointer = api.PyCapsule_GetPointer(capsule, NAMES[True])
    api.PyCapsule_SetName(capsule, USED)  # as consumers do
    check(lib.dt_from_dlpack(mesh, (Placement * 1)(), array.ndim, shape, c.c_void_p(pointer), copy,
                             c.byref(out)))
    return out


def numbers(array):
    return array.tolist()


def refused(array, mesh):
    try:
        taken(array, mesh, NEVER)
    except Error:
        return True
    return False


def body(rt, _):
    try:
        run(rt)
        return 0
    except BaseException as e:  # ctypes would print it and go on
        failures.append(e)
        return 10


def run(rt):
    mesh, x = c.c_void_p(), c.c_void_p()
    place, shape = (Placement * 1)(), (c.c_int64 * 2)(3, 4)
    check(lib.dt_mesh_create(c.c_void_p(rt), b"tp=1", c.byref(mesh)))
    start = numpy.arange(12, dtype=numpy.float32)
    check(lib.dt_from_local(mesh, place, F32, 2, shape, start.ctypes.data_as(c.c_void_p), c.byref(x)))
    for versioned in True, False:
        seen = numpy.from_dlpack(Exported(x, versioned))
        assert seen.shape == (3, 4) and numbers(seen.ravel()) == list(range(12)), seen
    numpy.from_dlpack(Exported(x, True))[2, 3] = 77
    assert numpy.from_dlpack(Exported(x, True))[2, 3] == 77
    kept.append(numpy.from_dlpack(Exported(x, True)))
    lib.dt_tensor_release(c.byref(x))

    mine = numpy.arange(6, dtype=numpy.float64).reshape(2, 3)
    x = taken(mine, mesh, NEVER)
    mine[1, 2] = 50  # the tensor sees it, and NumPy what is written to the tensor
    seen = numpy.from_dlpack(Exported(x, True))
    assert seen[1, 2] == 50 and seen.ctypes.data == mine.ctypes.data
    lib.dt_fill.argtypes = [c.c_void_p, c.c_double]
    check(lib.dt_fill(x, 4.0))
    assert numbers(mine.ravel()) == [4.0] * 6, mine
    lib.dt_tensor_release(c.byref(x))

    columns = numpy.arange(12, dtype=numpy.float32).reshape(3, 4).T
    frozen = numpy.arange(4, dtype=numpy.int32)
    frozen.flags.writeable = False
    for odd in columns, frozen:
        assert refused(odd, mesh)
        x = taken(odd, mesh, IF_NEEDED)
        copy = numpy.from_dlpack(Exported(x, True))
        assert (copy == odd).all() and copy.ctypes.data != odd.ctypes.data
        lib.dt_tensor_release(c.byref(x))
    lib.dt_mesh_release(c.byref(mesh))


failures, kept = [], []
main = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p)(body)
status = lib.dt_run(None, main, None)
if failures:
    raise failures[0]
check(status)
assert numbers(kept[0].ravel())[:11] == list(range(11)), kept[0]  # after the run
kept.clear()
print("NumPy", numpy.__version__, "and dtensor share memory: both ways, both forms")

// The Python module: each function returns None for an input that Python's reader has to look at.
#include "dump.hpp"
#include "snapshot.hpp"
#include "trace.hpp"

#include <algorithm>
#include <exception>
#include <new>

namespace {

// Python's reader uses this module only if the number is the one that it knows.
constexpr long VERSION = 7;

template <class Read> PyObject *guarded(Read read) {
    try {
        return read().release();
    } catch (const Unsupported &) {
        Py_RETURN_NONE;
    } catch (const PythonError &) {
        // What went wrong while reading the file, Python's reader will say.
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
        PyErr_Clear();
        Py_RETURN_NONE;
    } catch (const std::exception &) { // no memory: Python's reader may need less
        Py_RETURN_NONE;
    }
}

std::string_view bytes_in(PyObject *object) {
    char *bytes = nullptr;
    Py_ssize_t size = 0;
    check(PyBytes_AsStringAndSize(object, &bytes, &size));
    return {bytes, static_cast<std::size_t>(size)};
}

PyObject *read_snapshot(PyObject *, PyObject *arguments) {
    PyObject *file = nullptr, *settings = nullptr;
    if (!PyArg_ParseTuple(arguments, "OO!", &file, &PyDict_Type, &settings)) return nullptr;
    return guarded([&] {
        const Vocabulary vocabulary(settings);
        return Snapshot(file, vocabulary).read();
    });
}

PyObject *read_dump(PyObject *, PyObject *arguments) {
    PyObject *file = nullptr;
    Py_ssize_t tail = 0;
    if (!PyArg_ParseTuple(arguments, "On", &file, &tail)) return nullptr;
    return guarded([&] { return Dump(file).read(static_cast<std::size_t>(std::max<Py_ssize_t>(tail, 0))); });
}

PyObject *read_json_dump(PyObject *, PyObject *arguments) {
    PyObject *text = nullptr;
    Py_ssize_t tail = 0;
    if (!PyArg_ParseTuple(arguments, "Sn", &text, &tail)) return nullptr;
    return guarded([&] { return Dump().read_json(bytes_in(text), static_cast<std::size_t>(std::max<Py_ssize_t>(tail, 0))); });
}

PyObject *read_events(PyObject *, PyObject *arguments) {
    PyObject *text = nullptr, *words = nullptr;
    int exact = 0;
    if (!PyArg_ParseTuple(arguments, "SO!p", &text, &PyTuple_Type, &words, &exact)) return nullptr;
    return guarded([&] {
        const TraceWords known(words);
        return EventBlock(known, exact != 0).read(bytes_in(text));
    });
}

PyMethodDef FUNCTIONS[] = {
    {"read_snapshot", read_snapshot, METH_VARARGS,
     "read_snapshot(file, vocabulary): the columns of the pickle of a memory snapshot; None if Python has to read it."},
    {"read_dump", read_dump, METH_VARARGS,
     "read_dump(file, tail): (dump, (how many old entries it lacks, columns of the recent ones)) of the pickle of a "
     "Flight Recorder dump; None if Python has to read it."},
    {"read_json_dump", read_json_dump, METH_VARARGS,
     "read_json_dump(text, tail): the same of a dump in JSON, whose text is given as bytes."},
    {"read_events", read_events, METH_VARARGS,
     "read_events(text, words, exact): the rows of the complete events at the beginning of a text, the inside of a JSON "
     "list, as a dict; None if Python has to read them."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "analyzers.native._readers", "Native readers: see analyzers.native.", 0, FUNCTIONS, nullptr, nullptr, nullptr, nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit__readers(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module && PyModule_AddIntConstant(module, "VERSION", VERSION) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}

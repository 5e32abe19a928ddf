// What the readers need of Python: references that release themselves, and the exceptions that cross the border.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>
#include <vector>

// The input is not what this reader understands: Python's reader decides what it is.
struct Unsupported {};

// A Python exception is set and is on its way to the caller.
struct PythonError {};

class Ref {
  public:
    // Takes over a new reference; a null pointer means that Python has set an exception.
    explicit Ref(PyObject *object) : object_(object) {
        if (!object) throw PythonError();
    }
    Ref(Ref &&other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref(const Ref &) = delete;
    Ref &operator=(const Ref &) = delete;
    Ref &operator=(Ref &&other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }

    PyObject *get() const { return object_; }
    PyObject *release() { return std::exchange(object_, nullptr); }

  private:
    PyObject *object_;
};

inline void check(int status) {
    if (status < 0) throw PythonError();
}

// The numbers of a column as a bytearray, which numpy can view and write.
template <class Number> Ref bytes_of(const std::vector<Number> &numbers) {
    const auto size = static_cast<Py_ssize_t>(numbers.size() * sizeof(Number));
    return Ref(PyByteArray_FromStringAndSize(reinterpret_cast<const char *>(numbers.data()), size));
}

inline void set_item(PyObject *dict, const char *key, const Ref &value) {
    check(PyDict_SetItemString(dict, key, value.get()));
}

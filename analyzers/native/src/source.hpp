// Bytes of a Python file object, read in blocks.
#pragma once

#include "python.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

class Source {
  public:
    explicit Source(PyObject *file) : file_(file) {}

    // The next byte. Throws Unsupported at the end of the file, as all functions here.
    std::uint8_t byte() {
        if (at_ == window_.size()) require(1);
        return window_[at_++];
    }

    // The next `count` bytes; they are valid until the next call.
    std::span<const std::uint8_t> take(std::size_t count) {
        if (window_.size() - at_ < count) require(count);
        const std::span<const std::uint8_t> taken = std::span(window_).subspan(at_, count);
        at_ += count;
        return taken;
    }

    // A number of `Number`'s size, little-endian as all numbers of a pickle but its floats.
    template <class Number> Number number() {
        static_assert(std::endian::native == std::endian::little);
        Number value;
        std::memcpy(&value, take(sizeof(Number)).data(), sizeof(Number));
        return value;
    }

    // Throws Unsupported unless the file has `count` more bytes; they are not consumed.
    void require(std::size_t count);

    // The bytes that are in memory, up to this position in the file; `skip` consumes some of them.
    std::span<const std::uint8_t> window(std::uint64_t end) const {
        return std::span(window_).subspan(at_, static_cast<std::size_t>(std::min<std::uint64_t>(window_.size() - at_, end - position())));
    }
    void skip(std::size_t count) { at_ += count; }

    // How many bytes were consumed so far.
    std::uint64_t position() const { return dropped_ + at_; }

  private:
    void fill();

    PyObject *file_;
    std::vector<std::uint8_t> window_;
    std::size_t at_ = 0;
    std::uint64_t dropped_ = 0;
};

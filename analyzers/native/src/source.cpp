#include "source.hpp"

namespace {
constexpr Py_ssize_t BLOCK_BYTES = 1 << 18;
// A frame of a pickle has 64 KiB, unless a single text is longer.
constexpr std::size_t REQUIRED_AT_MOST = 64u << 20;
} // namespace

void Source::require(std::size_t count) {
    if (count > REQUIRED_AT_MOST) throw Unsupported();
    if (window_.size() - at_ >= count) return;
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(at_));
    dropped_ += at_;
    at_ = 0;
    while (window_.size() < count) fill();
}

void Source::fill() {
    const Ref block(PyObject_CallMethod(file_, "read", "n", BLOCK_BYTES));
    char *content = nullptr;
    Py_ssize_t size = 0;
    check(PyBytes_AsStringAndSize(block.get(), &content, &size));
    if (size <= 0) throw Unsupported();
    const auto *bytes = reinterpret_cast<const std::uint8_t *>(content);
    window_.insert(window_.end(), bytes, bytes + size);
}

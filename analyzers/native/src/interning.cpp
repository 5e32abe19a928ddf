#include "interning.hpp"

#include <cstring>
#include <random>

namespace {

// Multiplies to 128 bits and folds: each bit of both factors reaches the result.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

constexpr std::uint64_t ODD = 0x9E3779B97F4A7C15, OTHER = 0xD6E8FEB86659FD93;

bool is_continuation(std::uint8_t byte) { return (byte & 0xC0) == 0x80; }

// The length of the well-formed sequence at the beginning of `rest`; 0 if there is none.
std::size_t sequence_length(std::span<const std::uint8_t> rest) {
    const std::uint8_t first = rest[0];
    const std::size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (length < 2 || rest.size() < length) return length == 1 ? 1 : 0;
    for (std::size_t i = 1; i < length; ++i)
        if (!is_continuation(rest[i])) return 0;
    const std::uint8_t second = rest[1];
    const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    const bool surrogate = first == 0xED && second >= 0xA0, too_high = first == 0xF4 && second >= 0x90;
    return overlong || surrogate || too_high ? 0 : length;
}

} // namespace

bool is_utf8(std::span<const std::uint8_t> bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t length = sequence_length(bytes.subspan(at));
        if (!length) return false;
        at += length;
    }
    return true;
}

bool is_utf8(std::string_view text) {
    return is_utf8(std::span(reinterpret_cast<const std::uint8_t *>(text.data()), text.size()));
}

HashIndex::HashIndex() : slots_(1024, EMPTY) {
    static const std::uint64_t seed = [] {
        std::random_device device;
        return (static_cast<std::uint64_t>(device()) << 32) | device();
    }();
    seed_ = seed;
}

std::uint64_t HashIndex::hash(std::span<const std::uint8_t> bytes) const {
    std::uint64_t state = mix(seed_ ^ bytes.size(), ODD);
    while (bytes.size() >= 16) {
        std::uint64_t words[2];
        std::memcpy(words, bytes.data(), sizeof(words));
        state = mix(words[0] ^ state, words[1] ^ seed_ ^ OTHER);
        bytes = bytes.subspan(16);
    }
    std::uint64_t words[2] = {0, 0};
    if (!bytes.empty()) std::memcpy(words, bytes.data(), bytes.size());
    return mix(words[0] ^ state, words[1] ^ seed_ ^ OTHER) ^ mix(state, ODD);
}

void HashIndex::grow() {
    std::vector<std::uint32_t> larger(slots_.size() * 2, EMPTY);
    const std::size_t mask = larger.size() - 1;
    for (std::uint32_t number = 0; number < hashes_.size(); ++number) {
        std::size_t slot = hashes_[number] & mask;
        while (larger[slot] != EMPTY) slot = (slot + 1) & mask;
        larger[slot] = number;
    }
    slots_.swap(larger);
}

std::uint32_t Texts::number(std::span<const std::uint8_t> bytes) {
    const std::uint32_t found = index_.number(index_.hash(bytes), [&](std::uint32_t known) {
        const std::string_view other = text(known);
        return other.size() == bytes.size() && (other.empty() || !std::memcmp(other.data(), bytes.data(), other.size()));
    });
    if (found == ends_.size()) {
        if (!is_utf8(bytes)) throw Unsupported();
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
        ends_.push_back(bytes_.size());
    }
    return found;
}

std::uint32_t Texts::number(std::string_view text) {
    return number(std::span(reinterpret_cast<const std::uint8_t *>(text.data()), text.size()));
}

std::string_view Texts::text(std::uint32_t number) const {
    const std::uint64_t start = number ? ends_[number - 1] : 0;
    const auto bytes = std::span(bytes_).subspan(start, ends_[number] - start);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

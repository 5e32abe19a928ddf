// Numbers for distinct texts and distinct rows of numbers.
#pragma once

#include "python.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

// Whether bytes are well-formed UTF-8, without surrogates.
bool is_utf8(std::span<const std::uint8_t> bytes);
bool is_utf8(std::string_view text);

// A hash table from contents, which its owner keeps, to numbers from 0 in order of appearance.
class HashIndex {
  public:
    HashIndex();

    std::uint64_t hash(std::span<const std::uint8_t> bytes) const;

    // The number of the content with this hash for which `equal(number)` holds; `size()` before the call if it is new.
    template <class Equal> std::uint32_t number(std::uint64_t hash, Equal equal) {
        if ((hashes_.size() + 1) * 2 > slots_.size()) grow();
        const std::size_t mask = slots_.size() - 1;
        std::size_t slot = hash & mask;
        for (int probes = 0; slots_[slot] != EMPTY; slot = (slot + 1) & mask) {
            const std::uint32_t known = slots_[slot];
            if (hashes_[known] == hash && equal(known)) return known;
            // The seed is random: so many collisions are no accident.
            if (++probes > PROBES_AT_MOST) throw Unsupported();
        }
        const auto added = static_cast<std::uint32_t>(hashes_.size());
        if (added >= NUMBERS_AT_MOST) throw Unsupported();
        hashes_.push_back(hash);
        slots_[slot] = added;
        return added;
    }

    std::size_t size() const { return hashes_.size(); }

  private:
    static constexpr std::uint32_t EMPTY = 0xFFFFFFFF;
    static constexpr std::uint32_t NUMBERS_AT_MOST = 0x7FFFFFFF;
    static constexpr int PROBES_AT_MOST = 4096;

    void grow();

    std::uint64_t seed_;
    std::vector<std::uint32_t> slots_;
    std::vector<std::uint64_t> hashes_;
};

// Numbers for distinct texts, which are valid UTF-8.
class Texts {
  public:
    // Throws Unsupported if the bytes are no UTF-8, or hold surrogates, which Python's pickles allow.
    std::uint32_t number(std::span<const std::uint8_t> bytes);
    std::uint32_t number(std::string_view text);

    std::string_view text(std::uint32_t number) const;
    std::size_t size() const { return ends_.size(); }

  private:
    HashIndex index_;
    std::vector<std::uint8_t> bytes_;
    std::vector<std::uint64_t> ends_;
};

// Numbers for distinct rows of numbers of any length.
template <class Number> class Rows {
  public:
    std::uint32_t number(std::span<const Number> row) {
        const auto *bytes = reinterpret_cast<const std::uint8_t *>(row.data());
        const std::uint64_t hash = index_.hash({bytes, row.size_bytes()});
        const std::uint32_t found = index_.number(hash, [&](std::uint32_t known) {
            const auto other = (*this)[known];
            return std::equal(other.begin(), other.end(), row.begin(), row.end());
        });
        if (found == rows_.size()) rows_.push_back(kept(row));
        return found;
    }

    std::span<const Number> operator[](std::uint32_t number) const { return rows_[number]; }

    std::size_t size() const { return rows_.size(); }

  private:
    static constexpr std::size_t CHUNK = 1 << 18;

    // A copy of a row. A vector of all numbers would copy them again whenever it grows.
    std::span<const Number> kept(std::span<const Number> row) {
        if (row.size() > room_.size()) {
            const std::size_t size = std::max(CHUNK, row.size());
            chunks_.push_back(std::make_unique_for_overwrite<Number[]>(size));
            room_ = {chunks_.back().get(), size};
        }
        const auto copy = room_.first(row.size());
        std::copy(row.begin(), row.end(), copy.begin());
        room_ = room_.subspan(row.size());
        return copy;
    }

    HashIndex index_;
    std::vector<std::span<const Number>> rows_;
    std::vector<std::unique_ptr<Number[]>> chunks_;
    std::span<Number> room_;
};

// A cursor over a JSON text in memory, which finds where values begin and end.
#pragma once

#include "python.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The text ends inside of a value.
struct Incomplete {};

enum class Kind : std::uint8_t { STRING, NUMBER, TRUE, FALSE, NOTHING, LIST, OBJECT };

// A value as it is written in the file; `text` is that of a string without its quotes. A value is plain unless it has
// what JSON forbids but hides no other value, or what this reader does not know well enough, such as an exponent: then
// Python's decoder has to look at it.
struct JsonValue {
    Kind kind = Kind::NOTHING;
    bool plain = true;
    bool escaped = false;
    std::string_view text = {};
    std::optional<std::int64_t> whole = {}; // of a plain number without a point and with at most 18 digits, but for -0
    std::int64_t units = 0;                 // of a plain number, what its digits before a point stand for, without a sign
    std::string_view decimals = {};         // the digits behind the point
};

class Json {
  public:
    explicit Json(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

    // All functions here throw Incomplete at the end of the text, and Unsupported if the text is no JSON.

    // The next byte that is no white space; it is not consumed.
    char peek() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
        if (at_ == end_) throw Incomplete();
        return *at_;
    }

    // Consumes the next byte if it is this one, and returns whether it is.
    bool consume(char byte) {
        if (peek() != byte) return false;
        ++at_;
        return true;
    }

    void expect(char byte) {
        if (!consume(byte)) throw Unsupported();
    }

    JsonValue value();
    JsonValue string();

    // Consumes an object, and calls `member(key)` for each of its keys, which has to consume the value.
    template <class Member> void object(Member member) {
        expect('{');
        if (consume('}')) return;
        do {
            const JsonValue key = string();
            expect(':');
            member(key);
        } while (consume(','));
        expect('}');
    }

    // Consumes a list, and calls `item()` for each of its values, which has to consume it.
    template <class Item> void list(Item item) {
        expect('[');
        if (consume(']')) return;
        do item();
        while (consume(','));
        expect(']');
    }

    // Whether nothing but white space follows.
    bool at_end() const { return std::string_view(at_, static_cast<std::size_t>(end_ - at_)).find_first_not_of(" \n\r\t") == std::string_view::npos; }

    const char *position() const { return at_; }

  private:
    static constexpr int DEPTH_AT_MOST = 64;

    JsonValue number();
    JsonValue container(Kind kind);
    JsonValue word(std::string_view text, Kind kind);
    std::string_view since(const char *start) const { return {start, static_cast<std::size_t>(at_ - start)}; }
    std::string_view digits(std::uint64_t &number);

    const char *at_, *end_;
    int depth_ = 0;
};

// The text of a plain string, without escapes.
std::string unescaped(std::string_view text);

// The number that a text of up to 18 digits is; nothing for another text.
std::optional<std::int64_t> number_of(std::string_view digits);

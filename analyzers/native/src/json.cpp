#include "json.hpp"

#include "interning.hpp"

#include <bit>
#include <cstring>
#include <string>

namespace {

constexpr std::uint64_t ONES = 0x0101010101010101, HIGH = 0x8080808080808080;
constexpr std::string_view ESCAPES = "\"\\/bfnrt", ESCAPED = "\"\\/\b\f\n\r\t";
constexpr std::size_t DIGITS_AT_MOST = 18;

bool is_special(char byte) {
    const auto number = static_cast<unsigned char>(byte);
    return byte == '"' || byte == '\\' || number < 0x20 || number >= 0x80;
}

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

// The first quote, backslash, control character or byte of a character beyond ASCII; `end` if there is none.
const char *special(const char *at, const char *end) {
    static_assert(std::endian::native == std::endian::little);
    for (; end - at >= 8; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, at, sizeof(word));
        const std::uint64_t quote = word ^ (ONES * '"'), backslash = word ^ (ONES * '\\');
        // The highest bit of each such byte; above the first of them, borrows may set others.
        const std::uint64_t found =
            (((quote - ONES) & ~quote) | ((backslash - ONES) & ~backslash) | ((word - ONES * 0x20) & ~word) | word) & HIGH;
        if (found) return at + std::countr_zero(found) / 8;
    }
    while (at != end && !is_special(*at)) ++at;
    return at;
}

} // namespace

JsonValue Json::value() {
    switch (peek()) {
    case '"': return string();
    case '{': return container(Kind::OBJECT);
    case '[': return container(Kind::LIST);
    case 't': return word("true", Kind::TRUE);
    case 'f': return word("false", Kind::FALSE);
    case 'n': return word("null", Kind::NOTHING);
    default: return number();
    }
}

JsonValue Json::string() {
    expect('"');
    JsonValue found{.kind = Kind::STRING};
    bool ascii = true;
    const char *start = at_;
    for (;; ++at_) {
        at_ = special(at_, end_);
        if (at_ == end_) throw Incomplete();
        if (*at_ == '"') break;
        if (*at_ == '\\') {
            if (++at_ == end_) throw Incomplete();
            found.escaped = true;
            found.plain &= ESCAPES.find(*at_) != ESCAPES.npos;
        } else if (static_cast<unsigned char>(*at_) >= 0x80) {
            ascii = false;
        } else {
            found.plain = false;
        }
    }
    found.text = since(start);
    ++at_;
    found.plain &= ascii || is_utf8(found.text);
    return found;
}

// Consumes digits, of which there may be none, and appends them to a number; more than 19 overflow it.
inline std::string_view Json::digits(std::uint64_t &number) {
    const char *start = at_;
    for (; at_ != end_ && is_digit(*at_); ++at_) number = number * 10 + static_cast<std::uint64_t>(*at_ - '0');
    if (at_ == end_) throw Incomplete();
    return since(start);
}

JsonValue Json::number() {
    const char *start = at_;
    const bool negative = *at_ == '-';
    if (negative) ++at_;
    std::uint64_t units = 0, ignored = 0;
    const std::string_view whole = digits(units);
    if (whole.empty()) throw Unsupported();
    JsonValue found{.kind = Kind::NUMBER, .plain = (whole[0] != '0' || whole.size() == 1) && whole.size() <= DIGITS_AT_MOST};
    const bool has_point = *at_ == '.';
    if (has_point) {
        ++at_;
        found.decimals = digits(ignored);
        found.plain &= !found.decimals.empty();
    }
    if (*at_ == 'e' || *at_ == 'E') {
        ++at_;
        if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
        digits(ignored);
        found.plain = false;
    }
    if (found.plain) {
        found.units = static_cast<std::int64_t>(units);
        if (!has_point && !(negative && !units)) found.whole = negative ? -found.units : found.units;
    }
    found.text = since(start);
    return found;
}

JsonValue Json::container(Kind kind) {
    const bool is_object = kind == Kind::OBJECT;
    const char *start = at_;
    const char close = is_object ? '}' : ']';
    if (++depth_ > DEPTH_AT_MOST) throw Unsupported();
    JsonValue found{.kind = kind};
    ++at_;
    if (!consume(close)) {
        do {
            if (is_object) {
                found.plain &= string().plain;
                expect(':');
            }
            found.plain &= value().plain;
        } while (consume(','));
        expect(close);
    }
    --depth_;
    found.text = since(start);
    return found;
}

JsonValue Json::word(std::string_view text, Kind kind) {
    const char *start = at_;
    for (const char byte : text) {
        if (at_ == end_) throw Incomplete();
        if (*at_++ != byte) throw Unsupported();
    }
    return {.kind = kind, .text = since(start)};
}

std::string unescaped(std::string_view text) {
    std::string made;
    for (std::size_t i = 0; i < text.size(); ++i)
        made += text[i] == '\\' ? ESCAPED[ESCAPES.find(text[++i])] : text[i];
    return made;
}

std::optional<std::int64_t> number_of(std::string_view digits) {
    if (digits.empty() || digits.size() > DIGITS_AT_MOST) return std::nullopt;
    std::int64_t number = 0;
    for (const char byte : digits) {
        if (!is_digit(byte)) return std::nullopt;
        number = number * 10 + (byte - '0');
    }
    return number;
}

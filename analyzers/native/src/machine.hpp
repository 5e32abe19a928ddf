// A pickle machine for plain data. It knows no opcode that imports, calls or looks something up. It reads JSON, too.
#pragma once

#include "interning.hpp"
#include "json.hpp"
#include "source.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

enum class Tag : std::uint8_t { NONE, BOOL, INT, BIG, FLOAT, TEXT, OBJECT };

// A value in eight bytes: the tag in the lowest three bits, above it a number of 61 bits or the index of a text, an
// object, a float or a number that needs 64 bits.
class Value {
  public:
    Value() = default;
    Value(Tag tag, std::int64_t payload) : bits_(static_cast<std::uint64_t>(payload) << 3 | static_cast<std::uint64_t>(tag)) {}

    Tag tag() const { return static_cast<Tag>(bits_ & 7); }
    bool is(Tag tag) const { return this->tag() == tag; }
    std::int64_t payload() const { return static_cast<std::int64_t>(bits_) >> 3; }
    std::uint32_t index() const { return static_cast<std::uint32_t>(bits_ >> 3); }

    // Whether it is the same value, of containers the same object. Equal floats and large numbers need not be the same.
    auto operator<=>(const Value &) const = default;

    static bool fits(std::int64_t number) { return number >= -(1LL << 60) && number < 1LL << 60; }

  private:
    std::uint64_t bits_ = 0;
};

using Values = std::span<const Value>;

// TUPLE, LIST and DICT (pairs of key and value) hold values. ROW and NUMBERED are dicts and lists whose content went
// into a table of the reader; what they stand for is `Object::kind_of_row` and `Object::first`.
enum class Shape : std::uint8_t { TUPLE, LIST, DICT, ROW, NUMBERED };

struct Object {
    Shape shape;
    std::uint8_t kind_of_row = 0;
    // Somebody has looked at the content, so that it must not change any more.
    bool sealed = false;
    // The values are in `Machine::grown_[first]` instead of `Machine::items_[first : first + size]`.
    bool grown = false;
    std::uint32_t size = 0;
    std::uint64_t first = 0;
};

// The values that the next instructions use.
class Stack {
  public:
    std::size_t size() const { return size_; }
    std::size_t capacity() const { return slots_.size(); }
    Values last(std::size_t count) const { return Values(slots_).subspan(size_ - count, count); }
    // The value below the last `depth` ones.
    Value below(std::size_t depth) const { return slots_[size_ - depth - 1]; }

    void push(Value value) {
        room(1);
        slots_[size_++] = value;
    }
    void drop(std::size_t count) { size_ -= count; }
    void clear() { size_ = 0; }

    // At least `count` free slots above the last value; `fill` says how many of them have a value now.
    std::span<Value> room(std::size_t count) {
        if (slots_.size() - size_ < count) slots_.resize(std::max(2 * slots_.size(), size_ + count));
        return std::span(slots_).subspan(size_);
    }
    void fill(std::size_t count) { size_ += count; }

  private:
    std::vector<Value> slots_;
    std::size_t size_ = 0;
};

struct Arrays {
    Stack stack_;
    std::vector<Value> memo_, items_;
    std::vector<Object> objects_;
};

class Machine : private Arrays {
  public:
    // The file is the one with a pickle; `parse` does not look at it.
    explicit Machine(PyObject *file = Py_None);
    virtual ~Machine();

    // Runs the pickle and returns its value. Throws Unsupported for whatever a recorder does not write.
    Value run();

    // Reads a JSON text instead, and returns its value. Throws Unsupported for what is no JSON or rare in it.
    Value parse(std::string_view text);

    // The content of a tuple, list or dict; it must not change afterwards.
    Values content(std::uint32_t object);

    // A new Python object for a value. Throws Unsupported where it holds rows, itself, or more levels than `DEPTH`.
    Ref to_python(Value value);

    // The same for several values, as a list; what they share in the pickle, the objects share.
    Ref to_python_list(Values values);

  protected:
    static constexpr int DEPTH = 20;

    // Takes the items of an empty list, or the pairs of an empty dict, into a table, and changes the object to what
    // stands for them; returns false if the object is to hold the values itself.
    virtual bool absorb_list(Object &list, Values items) = 0;
    virtual bool absorb_dict(Object &dict, Values pairs) = 0;

    Object &object(std::uint32_t index) { return objects_[index]; }
    std::int64_t signed_number(Value value) const;
    std::uint64_t unsigned_number(Value value) const;
    std::uint32_t text(Value value) const;

    Texts texts_;

  private:
    struct Big {
        bool negative;
        std::uint64_t bits;
    };
    class Converter;

    static constexpr std::uint64_t NO_FRAME = ~std::uint64_t{0};

    void push_values();
    bool step(std::uint8_t opcode);
    void enter_frame(std::uint64_t size);
    void leave_frame_at_end();
    void push(Value value) { stack_.push(value); }
    Value whole(std::int64_t number);
    void push_whole(std::int64_t number) { push(whole(number)); }
    void push_unsigned(std::uint64_t number);
    void push_long(std::span<const std::uint8_t> bytes);
    void push_float();
    Value new_float(double number);
    void push_text(std::size_t length) { push(Value(Tag::TEXT, texts_.number(source_.take(length)))); }
    void push_tuple(std::size_t size);
    Value collected(Shape shape, std::size_t count);
    Value parse_value(Json &json, int depth);
    Value parse_key(const JsonValue &key, int depth, std::size_t place);
    Value parse_number(const JsonValue &number);
    Value parse_text(const JsonValue &text);
    Value new_object(Shape shape);
    void push_object(Shape shape) { push(new_object(shape)); }
    Value pop();
    Value top() const;
    std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
    std::size_t pop_mark();
    void remember(std::uint64_t index);
    void recall(std::uint64_t index) {
        if (index >= memo_.size()) throw Unsupported();
        push(memo_[index]);
    }
    void append(std::size_t count);
    void set_items(std::size_t count);
    void add(Object &target, Values values);

    Source source_;
    std::uint64_t frame_end_ = NO_FRAME; // where the bytes of the present frame end in the file
    std::vector<std::size_t> marks_;
    std::deque<std::vector<Value>> grown_;
    std::vector<double> floats_;
    std::vector<Big> bigs_;
    std::array<std::vector<std::pair<std::string_view, Value>>, DEPTH + 1> keys_; // of the JSON objects read last
};

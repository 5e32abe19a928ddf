#include "machine.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <memory>

namespace {

constexpr std::size_t INDEX_AT_MOST = 0x7FFFFFFF;

enum Opcode : std::uint8_t {
    MARK = '(', STOP = '.', POP = '0', BININT = 'J', BININT1 = 'K', BININT2 = 'M', NONE = 'N', BINUNICODE = 'X',
    APPEND = 'a', DICT = 'd', APPENDS = 'e', BINGET = 'h', LONG_BINGET = 'j', LIST = 'l', BINPUT = 'q',
    LONG_BINPUT = 'r', SETITEM = 's', TUPLE = 't', SETITEMS = 'u', EMPTY_DICT = '}', EMPTY_LIST = ']',
    EMPTY_TUPLE = ')', BINFLOAT = 'G', PROTO = 0x80, TUPLE1 = 0x85, TUPLE2 = 0x86, TUPLE3 = 0x87, NEWTRUE = 0x88,
    NEWFALSE = 0x89, LONG1 = 0x8A, SHORT_BINUNICODE = 0x8C, BINUNICODE8 = 0x8D, MEMOIZE = 0x94, FRAME = 0x95,
};

constexpr std::uint8_t NEWEST_PROTOCOL = 5;

// How many bytes the longest instruction has that `push_values` executes: the opcode, a length and 8 bytes.
constexpr std::size_t LONGEST_PUSH = 10;
constexpr std::size_t PUSHES_AT_LEAST = 256;

template <class Number> Number number_at(const std::uint8_t *bytes) {
    Number number;
    std::memcpy(&number, bytes, sizeof(number));
    return number;
}

} // namespace

inline Value Machine::new_object(Shape shape) {
    if (objects_.size() >= INDEX_AT_MOST) throw Unsupported();
    objects_.push_back(Object{.shape = shape});
    return Value(Tag::OBJECT, static_cast<std::int64_t>(objects_.size() - 1));
}

// Executes instructions as long as each only pushes a value or a mark, or remembers what was just pushed, and is whole in
// the window and in the frame: nine of ten do. Whatever else comes next is left to `step`, also what is wrong.
void Machine::push_values() {
    const auto rest = source_.window(frame_end_);
    if (rest.size() < LONGEST_PUSH) return;
    const std::uint8_t *at = rest.data(), *const last = at + rest.size() - LONGEST_PUSH;
    const auto room = stack_.room(PUSHES_AT_LEAST);
    Value *top = room.data(), *const full = top + room.size();
    const Value *fence = top; // what is below was pushed earlier, or is behind a mark
    const Value *memo = memo_.data();
    std::size_t known = memo_.size();
    const std::size_t below = stack_.size();
    const auto integer = [](std::int64_t number) { return Value(Tag::INT, number); };
    const auto remember_top = [&](std::size_t index) {
        if (index != known || top == fence) return false;
        memo_.push_back(top[-1]);
        memo = memo_.data();
        ++known;
        return true;
    };
    for (bool is_push = true; is_push && at <= last && top != full;) {
        const std::uint8_t opcode = *at, operand = at[1];
        switch (opcode) {
        case BINGET:
            if ((is_push = operand < known)) *top++ = memo[operand], at += 2;
            break;
        case LONG_BINGET: {
            const auto index = number_at<std::uint32_t>(at + 1);
            if ((is_push = index < known)) *top++ = memo[index], at += 5;
            break;
        }
        case BININT1: *top++ = integer(operand), at += 2; break;
        case BININT2: *top++ = integer(number_at<std::uint16_t>(at + 1)), at += 3; break;
        case BININT: *top++ = integer(number_at<std::int32_t>(at + 1)), at += 5; break;
        case LONG1:
            if ((is_push = operand == sizeof(std::int64_t))) *top++ = whole(number_at<std::int64_t>(at + 2)), at += LONGEST_PUSH;
            break;
        case NONE: *top++ = Value(Tag::NONE, 0), at += 1; break;
        case NEWTRUE:
        case NEWFALSE: *top++ = Value(Tag::BOOL, opcode == NEWTRUE), at += 1; break;
        case MARK: marks_.push_back(below + static_cast<std::size_t>(top - room.data())), fence = top, at += 1; break;
        case EMPTY_LIST:
        case EMPTY_DICT: *top++ = new_object(opcode == EMPTY_LIST ? Shape::LIST : Shape::DICT), at += 1; break;
        case BINPUT:
            if ((is_push = remember_top(operand))) at += 2;
            break;
        case LONG_BINPUT:
            if ((is_push = remember_top(number_at<std::uint32_t>(at + 1)))) at += 5;
            break;
        case MEMOIZE:
            if ((is_push = remember_top(known))) at += 1;
            break;
        default: is_push = false;
        }
    }
    stack_.fill(static_cast<std::size_t>(top - room.data()));
    source_.skip(static_cast<std::size_t>(at - rest.data()));
}

// Executes one instruction, and returns false after the last one.
inline bool Machine::step(std::uint8_t opcode) {
    switch (opcode) {
    case BINGET: recall(source_.byte()); break;
    case LONG_BINGET: recall(source_.number<std::uint32_t>()); break;
    case MEMOIZE: remember(memo_.size()); break;
    case BINPUT: remember(source_.byte()); break;
    case LONG_BINPUT: remember(source_.number<std::uint32_t>()); break;
    case BININT1: push_whole(source_.byte()); break;
    case BININT2: push_whole(source_.number<std::uint16_t>()); break;
    case BININT: push_whole(static_cast<std::int32_t>(source_.number<std::uint32_t>())); break;
    case LONG1: push_long(source_.take(source_.byte())); break;
    case SHORT_BINUNICODE: push_text(source_.byte()); break;
    case BINUNICODE: push_text(source_.number<std::uint32_t>()); break;
    case BINUNICODE8: push_text(source_.number<std::uint64_t>()); break;
    case MARK: marks_.push_back(stack_.size()); break;
    case EMPTY_DICT: push_object(Shape::DICT); break;
    case EMPTY_LIST: push_object(Shape::LIST); break;
    case EMPTY_TUPLE: push_tuple(0); break;
    case TUPLE1: push_tuple(1); break;
    case TUPLE2: push_tuple(2); break;
    case TUPLE3: push_tuple(3); break;
    case TUPLE: push_tuple(pop_mark()); break;
    case APPEND: append(1); break;
    case APPENDS: append(pop_mark()); break;
    case SETITEM: set_items(2); break;
    case SETITEMS: set_items(pop_mark()); break;
    case NONE: push(Value(Tag::NONE, 0)); break;
    case NEWTRUE: push(Value(Tag::BOOL, 1)); break;
    case NEWFALSE: push(Value(Tag::BOOL, 0)); break;
    case BINFLOAT: push_float(); break;
    case FRAME: enter_frame(source_.number<std::uint64_t>()); break;
    case STOP:
        if (!marks_.empty()) throw Unsupported();
        return false;
    default: throw Unsupported();
    }
    return true;
}

namespace {

// The memory of the last machine, for the next one: a job has a thousand dumps, each of half a megabyte.
Arrays spare;
constexpr std::size_t SPARE_AT_MOST = 1 << 20; // elements

template <class Array> void keep(Array &array) {
    if (array.capacity() > SPARE_AT_MOST) array = {};
    array.clear();
}

} // namespace

Machine::Machine(PyObject *file) : source_(file) { std::swap(static_cast<Arrays &>(*this), spare); }

Machine::~Machine() {
    keep(stack_);
    keep(memo_);
    keep(objects_);
    keep(items_);
    std::swap(static_cast<Arrays &>(*this), spare);
}

Value Machine::run() {
    if (source_.byte() != PROTO || source_.byte() > NEWEST_PROTOCOL) throw Unsupported();
    do {
        leave_frame_at_end();
        push_values();
        leave_frame_at_end();
    } while (step(source_.byte()));
    return pop();
}

Value Machine::parse(std::string_view text) {
    Json json(text);
    try {
        const Value value = parse_value(json, 0);
        if (!json.at_end()) throw Unsupported();
        return value;
    } catch (const Incomplete &) {
        throw Unsupported();
    }
}

Value Machine::parse_value(Json &json, int depth) {
    if (depth > DEPTH) throw Unsupported();
    const std::size_t before = stack_.size();
    switch (json.peek()) {
    case '{':
        json.object([&](const JsonValue &key) {
            push(parse_key(key, depth, (stack_.size() - before) / 2));
            push(parse_value(json, depth + 1));
        });
        return collected(Shape::DICT, stack_.size() - before);
    case '[':
        json.list([&] { push(parse_value(json, depth + 1)); });
        return collected(Shape::LIST, stack_.size() - before);
    }
    const JsonValue value = json.value();
    switch (value.kind) {
    case Kind::STRING: return parse_text(value);
    case Kind::TRUE: return Value(Tag::BOOL, 1);
    case Kind::FALSE: return Value(Tag::BOOL, 0);
    case Kind::NOTHING: return Value(Tag::NONE, 0);
    default: return parse_number(value);
    }
}

// Most objects have the keys of the object before them on the same level, in the same order.
Value Machine::parse_key(const JsonValue &key, int depth, std::size_t place) {
    auto &known = keys_[static_cast<std::size_t>(depth)];
    if (place < known.size() && known[place].first == key.text) return known[place].second;
    const Value value = parse_text(key);
    if (place >= known.size()) known.resize(place + 1);
    known[place] = {key.text, value};
    return value;
}

Value Machine::parse_text(const JsonValue &text) {
    if (!text.plain) throw Unsupported();
    return Value(Tag::TEXT, texts_.number(text.escaped ? std::string_view(unescaped(text.text)) : text.text));
}

Value Machine::parse_number(const JsonValue &number) {
    if (number.whole) return whole(*number.whole);
    const std::string text(number.text);
    if (number.plain) {
        if (number.decimals.empty()) throw Unsupported(); // -0
        const double parsed = PyOS_string_to_double(text.c_str(), nullptr, nullptr);
        if (PyErr_Occurred()) throw PythonError();
        return new_float(parsed);
    }
    // Nanoseconds since the epoch have 19 digits.
    std::int64_t parsed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (error != std::errc() || end != text.data() + text.size() || text[text[0] == '-'] == '0') throw Unsupported();
    return whole(parsed);
}

void Machine::enter_frame(std::uint64_t size) {
    if (frame_end_ != NO_FRAME) throw Unsupported();
    source_.require(size);
    frame_end_ = source_.position() + size;
}

// Python's unpickler loses the bytes at the end of a frame that are only a part of an instruction.
void Machine::leave_frame_at_end() {
    if (source_.position() < frame_end_) return;
    if (source_.position() > frame_end_) throw Unsupported();
    frame_end_ = NO_FRAME;
}

Value Machine::whole(std::int64_t number) {
    if (Value::fits(number)) return Value(Tag::INT, number);
    bigs_.push_back({number < 0, static_cast<std::uint64_t>(number)});
    return Value(Tag::BIG, static_cast<std::int64_t>(bigs_.size() - 1));
}

void Machine::push_unsigned(std::uint64_t number) {
    push(Value(Tag::BIG, static_cast<std::int64_t>(bigs_.size())));
    bigs_.push_back({false, number});
}

// A number in two's complement, of at most 64 bits if it is negative or 64 bits without a sign.
void Machine::push_long(std::span<const std::uint8_t> bytes) {
    if (bytes.size() > 9 || (bytes.size() == 9 && bytes[8])) throw Unsupported();
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i) bits |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
    if (bytes.size() == 9 && bits >> 63) return push_unsigned(bits);
    const bool negative = !bytes.empty() && bytes.size() < 9 && bytes.back() & 0x80;
    if (negative && bytes.size() < 8) bits |= ~std::uint64_t{0} << 8 * bytes.size();
    push_whole(static_cast<std::int64_t>(bits));
}

void Machine::push_float() {
    std::uint64_t bits = 0;
    for (const std::uint8_t byte : source_.take(8)) bits = bits << 8 | byte; // big-endian
    push(new_float(std::bit_cast<double>(bits)));
}

Value Machine::new_float(double number) {
    floats_.push_back(number);
    return Value(Tag::FLOAT, static_cast<std::int64_t>(floats_.size() - 1));
}

void Machine::push_tuple(std::size_t size) {
    if (stack_.size() - fence() < size) throw Unsupported();
    push(collected(Shape::TUPLE, size));
}

// Takes the last `count` values off the stack into a new object.
Value Machine::collected(Shape shape, std::size_t count) {
    Object made{.shape = shape};
    add(made, stack_.last(count));
    stack_.drop(count);
    const Value value = new_object(shape);
    objects_.back() = made;
    return value;
}

Value Machine::pop() {
    const Value value = top();
    stack_.drop(1);
    return value;
}

Value Machine::top() const {
    if (stack_.size() <= fence()) throw Unsupported();
    return stack_.below(0);
}

// Takes the last mark away and returns how many values are above it.
std::size_t Machine::pop_mark() {
    if (marks_.empty()) throw Unsupported();
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    if (mark > stack_.size()) throw Unsupported();
    return stack_.size() - mark;
}

void Machine::remember(std::uint64_t index) {
    // Recorders number what they remember from 0: a gap would only serve to take memory.
    if (index > memo_.size()) throw Unsupported();
    const Value value = top();
    if (index == memo_.size()) memo_.push_back(value);
    else memo_[index] = value;
}

// Appends the last `count` values of the stack to the list below them.
void Machine::append(std::size_t count) {
    if (stack_.size() - fence() < count + 1) throw Unsupported();
    const Values items = stack_.last(count);
    const Value target = stack_.below(count);
    if (!target.is(Tag::OBJECT)) throw Unsupported();
    Object &list = objects_[target.index()];
    if (list.shape != Shape::LIST || list.sealed) throw Unsupported();
    if (count && (list.size || !absorb_list(list, items))) add(list, items);
    stack_.drop(count);
}

// Puts the last `count` values of the stack, keys and values in turn, into the dict below them.
void Machine::set_items(std::size_t count) {
    if (count % 2 || stack_.size() - fence() < count + 1) throw Unsupported();
    const Values pairs = stack_.last(count);
    const Value target = stack_.below(count);
    if (!target.is(Tag::OBJECT)) throw Unsupported();
    for (std::size_t i = 0; i < count; i += 2) // what Python could not hash, or what equals other keys
        if (!pairs[i].is(Tag::TEXT) && !pairs[i].is(Tag::INT)) throw Unsupported();
    Object &dict = objects_[target.index()];
    if (dict.shape != Shape::DICT || dict.sealed) throw Unsupported();
    if (count && (dict.size || !absorb_dict(dict, pairs))) add(dict, pairs);
    stack_.drop(count);
}

void Machine::add(Object &target, Values values) {
    if (values.size() > INDEX_AT_MOST - target.size) throw Unsupported();
    if (target.grown) {
        auto &grown = grown_[target.first];
        grown.insert(grown.end(), values.begin(), values.end());
    } else if (target.size) {
        const Values held = Values(items_).subspan(target.first, target.size);
        auto &grown = grown_.emplace_back(held.begin(), held.end());
        grown.insert(grown.end(), values.begin(), values.end());
        target.first = grown_.size() - 1;
        target.grown = true;
    } else {
        target.first = items_.size();
        items_.insert(items_.end(), values.begin(), values.end());
    }
    target.size += static_cast<std::uint32_t>(values.size());
}

Values Machine::content(std::uint32_t index) {
    Object &held = objects_[index];
    if (held.shape != Shape::TUPLE && held.shape != Shape::LIST && held.shape != Shape::DICT) throw Unsupported();
    held.sealed = true;
    return held.grown ? Values(grown_[held.first]) : Values(items_).subspan(held.first, held.size);
}

std::int64_t Machine::signed_number(Value value) const {
    if (value.is(Tag::INT)) return value.payload();
    if (!value.is(Tag::BIG)) throw Unsupported();
    const Big &big = bigs_[value.index()];
    if (!big.negative && big.bits >> 63) throw Unsupported();
    return static_cast<std::int64_t>(big.bits);
}

std::uint64_t Machine::unsigned_number(Value value) const {
    if (value.is(Tag::BIG) && !bigs_[value.index()].negative) return bigs_[value.index()].bits;
    if (!value.is(Tag::INT) || value.payload() < 0) throw Unsupported();
    return static_cast<std::uint64_t>(value.payload());
}

std::uint32_t Machine::text(Value value) const {
    if (!value.is(Tag::TEXT)) throw Unsupported();
    return value.index();
}

namespace {

// A pointer for each object of a pickle, of which most are never asked for.
class Pages {
  public:
    PyObject *&operator[](std::uint32_t index) {
        const std::size_t page = index / PAGE;
        if (page >= pages_.size()) pages_.resize(page + 1);
        if (!pages_[page]) pages_[page] = std::make_unique<std::array<PyObject *, PAGE>>();
        return (*pages_[page])[index % PAGE];
    }

  private:
    static constexpr std::uint32_t PAGE = 512;
    std::vector<std::unique_ptr<std::array<PyObject *, PAGE>>> pages_;
};

} // namespace

// Converts values to Python objects; what the pickle shares, the objects share.
class Machine::Converter {
  public:
    explicit Converter(Machine &machine) : machine_(machine) {}

    Ref convert(Value value, int depth) {
        switch (value.tag()) {
        case Tag::NONE: return Ref(Py_NewRef(Py_None));
        case Tag::BOOL: return Ref(PyBool_FromLong(value.payload() != 0));
        case Tag::INT: return Ref(PyLong_FromLongLong(value.payload()));
        case Tag::FLOAT: return Ref(PyFloat_FromDouble(machine_.floats_[value.index()]));
        case Tag::BIG: return big(machine_.bigs_[value.index()]);
        case Tag::TEXT: return text(value.index());
        case Tag::OBJECT: return object(value.index(), depth);
        }
        throw Unsupported();
    }

  private:
    static Ref big(const Big &number) {
        if (number.negative) return Ref(PyLong_FromLongLong(static_cast<std::int64_t>(number.bits)));
        return Ref(PyLong_FromUnsignedLongLong(number.bits));
    }

    // Most texts are keys, which stand in every dict.
    Ref text(std::uint32_t index) {
        if (texts_.size() <= index) texts_.resize(machine_.texts_.size(), nullptr);
        if (!texts_[index]) {
            const std::string_view text = machine_.texts_.text(index);
            Ref made(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
            texts_[index] = made.get();
            kept_.push_back(std::move(made));
        }
        return Ref(Py_NewRef(texts_[index]));
    }

    Ref object(std::uint32_t index, int depth) {
        PyObject *&known = made_[index];
        if (known == Py_None) throw Unsupported(); // it holds itself
        if (known) return Ref(Py_NewRef(known));
        if (depth > DEPTH) throw Unsupported();
        known = Py_None; // while it is being made
        Ref made = container(index, depth);
        known = made.get();
        kept_.push_back(Ref(Py_NewRef(made.get())));
        return made;
    }

    Ref container(std::uint32_t index, int depth) {
        const Shape shape = machine_.objects_[index].shape;
        const Values values = machine_.content(index);
        if (shape == Shape::DICT) return dict(values, depth);
        Ref list(PyList_New(0));
        for (const Value value : values) check(PyList_Append(list.get(), convert(value, depth + 1).get()));
        return shape == Shape::LIST ? std::move(list) : Ref(PyList_AsTuple(list.get()));
    }

    Ref dict(Values pairs, int depth) {
        Ref dict(PyDict_New());
        for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
            const Ref key = convert(pairs[i], depth + 1), value = convert(pairs[i + 1], depth + 1);
            check(PyDict_SetItem(dict.get(), key.get(), value.get()));
        }
        return dict;
    }

    Machine &machine_;
    Pages made_;
    std::vector<PyObject *> texts_;
    std::vector<Ref> kept_; // what `made_` and `texts_` point to
};

Ref Machine::to_python(Value value) { return Converter(*this).convert(value, 0); }

Ref Machine::to_python_list(Values values) {
    Converter converter(*this);
    Ref list(PyList_New(0));
    for (const Value value : values) check(PyList_Append(list.get(), converter.convert(value, 0).get()));
    return list;
}

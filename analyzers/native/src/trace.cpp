#include "trace.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr std::array<std::string_view, FIELDS> EVENT_FIELDS = {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"};

// As in `event_table`. Times next to the largest one are left to Python, and from 2**43 µs on a
// double holds no nanoseconds.
constexpr std::int64_t MICROSECONDS_BELOW = 4'499'999'999'999'999, FLOAT_EXACT_BELOW = std::int64_t{1} << 43;
constexpr std::int64_t NUMBER_BELOW = std::int64_t{1} << 62, DEVICE_BELOW = std::int64_t{1} << 31, FIRST_TEXT_ID = -2;
constexpr std::size_t DECIMALS = 3, DECIMALS_AT_MOST = 9;

template <class Number> bool same(const char *one, const char *other) {
    Number left, right;
    std::memcpy(&left, one, sizeof(left));
    std::memcpy(&right, other, sizeof(right));
    return left == right;
}

// As `==`, which calls a function of the C library: names are too short for that.
bool equal(std::string_view one, std::string_view other) {
    const std::size_t size = one.size();
    if (size != other.size()) return false;
    if (size > 16) return one == other;
    const char *left = one.data(), *right = other.data();
    if (size >= 8) return same<std::uint64_t>(left, right) && same<std::uint64_t>(left + size - 8, right + size - 8);
    if (size >= 4) return same<std::uint32_t>(left, right) && same<std::uint32_t>(left + size - 4, right + size - 4);
    if (size >= 2) return same<std::uint16_t>(left, right) && same<std::uint16_t>(left + size - 2, right + size - 2);
    return !size || *left == *right;
}

std::string word(PyObject *words, Py_ssize_t index) {
    Py_ssize_t size = 0;
    PyObject *item = PyTuple_GetItem(words, index); // borrowed
    const char *text = item ? PyUnicode_AsUTF8AndSize(item, &size) : nullptr;
    if (!text) throw PythonError();
    return {text, static_cast<std::size_t>(size)};
}

bool is_kind(const JsonValue &value, std::initializer_list<Kind> kinds) {
    return std::find(kinds.begin(), kinds.end(), value.kind) != kinds.end();
}

// Whether a pid, tid or stream is a text, or a number that stands for itself in a column.
bool is_identity(const JsonValue &value) { return value.kind == Kind::STRING || value.whole.value_or(-2) >= -1; }

// Whether a value has the type that `stream.Args` has for it.
bool has_type(std::size_t argument, const JsonValue &value) {
    switch (argument) {
    case COLLECTIVE:
    case DTYPE:
    case THREAD_NAME: return value.kind == Kind::STRING;
    case STREAM: return is_identity(value);
    case GROUP: return value.kind == Kind::STRING || value.whole;
    case FINISHED: return is_kind(value, {Kind::TRUE, Kind::FALSE});
    case DIMS:
    case TYPES:
    case CONCRETE:
    case OCCUPANCY:
    case LIMITS:
    case WARPS:
    case BLOCKS:
    case SPLITS: return true;
    case SIZE: return false; // ROCm writes a number or a text: Python's reader decides
    default: return value.whole.has_value();
    }
}

// Whether digits are written as a number is; see `event_table.WHOLE_NUMBER`.
bool is_canonical(std::string_view digits) { return digits == "0" || !digits.starts_with('0'); }

// A value with its quotes, as the file has it.
std::string_view raw(const JsonValue &value) {
    if (value.kind != Kind::STRING) return value.text;
    return {value.text.data() - 1, value.text.size() + 2};
}

Ref list_of(const Texts &texts, bool as_bytes) {
    Ref list(PyList_New(static_cast<Py_ssize_t>(texts.size())));
    for (std::uint32_t number = 0; number < texts.size(); ++number) {
        const std::string_view text = texts.text(number);
        const auto size = static_cast<Py_ssize_t>(text.size());
        Ref item(as_bytes ? PyBytes_FromStringAndSize(text.data(), size) : PyUnicode_FromStringAndSize(text.data(), size));
        check(PyList_SetItem(list.get(), static_cast<Py_ssize_t>(number), item.release()));
    }
    return list;
}

} // namespace

std::size_t Names::slot_of(std::string_view name) {
    if (name.empty()) return 0;
    const auto at = [&](std::size_t index) { return static_cast<std::size_t>(static_cast<unsigned char>(name[index])); };
    return (name.size() * 7 + at(0) * 3 + at(name.size() / 2) * 31 + at(name.size() - 1) * 131) % 256;
}

void Names::add(std::string_view name, std::uint8_t number) {
    std::size_t slot = slot_of(name);
    while (slots_[slot].number != NONE) slot = (slot + 1) % slots_.size();
    slots_[slot] = {std::string(name), number};
}

std::uint8_t Names::find(std::string_view name) const {
    for (std::size_t slot = slot_of(name); slots_[slot].number != NONE; slot = (slot + 1) % slots_.size())
        if (equal(slots_[slot].name, name)) return slots_[slot].number;
    return NONE;
}

TraceWords::TraceWords(PyObject *words) {
    if (PyTuple_Size(words) != ARGUMENTS + 3) throw Unsupported();
    for (std::uint8_t field = 0; field < FIELDS; ++field) fields.add(EVENT_FIELDS[field], field);
    for (std::uint8_t argument = 0; argument < ARGUMENTS; ++argument) arguments.add(word(words, argument), argument);
    instant = word(words, ARGUMENTS);
    allocation = word(words, ARGUMENTS + 1);
    counted = word(words, ARGUMENTS + 2);
}

Ref EventBlock::read(std::string_view text) {
    Json json(text);
    const char *complete = text.data();
    std::int64_t order = 0;
    try {
        json.consume(','); // the block before may have ended in front of it
        do {
            if (order && json.peek() == ']') break; // some exporters write a comma behind the last event
            json.peek();
            const char *start = json.position();
            const bool is_read = read_event(json) && add(order);
            complete = json.position();
            if (!is_read) {
                left_start_.push_back(start - text.data());
                left_end_.push_back(complete - text.data());
                left_order_.push_back(order);
            }
            ++order;
        } while (json.consume(','));
        if (json.peek() != ']') throw Unsupported();
    } catch (const Incomplete &) { // the rest comes with the next block
    }
    if (!order) throw Unsupported();
    return result(text, complete);
}

// Consumes an event, and returns whether all that was read of it is plain and occurs once.
bool EventBlock::read_event(Json &json) {
    bool plain = true;
    event_.clear();
    arguments_.clear();
    has_arguments_ = false;
    json.object([&](const JsonValue &key) {
        const std::uint8_t field = words_.fields.find(key.text);
        if (field == ARGUMENT_FIELD && json.peek() == '{') {
            plain &= key.plain && event_.set(field, {.kind = Kind::OBJECT});
            plain &= read_arguments(json);
            return;
        }
        const JsonValue value = json.value();
        plain &= key.plain && !key.escaped && value.plain;
        if (field != Names::NONE) plain &= event_.set(field, value);
    });
    return plain;
}

bool EventBlock::read_arguments(Json &json) {
    bool plain = true;
    has_arguments_ = true;
    json.object([&](const JsonValue &key) {
        const JsonValue value = json.value();
        plain &= key.plain && !key.escaped && value.plain;
        const std::uint8_t argument = words_.arguments.find(key.text);
        if (argument != Names::NONE) plain &= arguments_.set(argument, value);
    });
    return plain;
}

// Adds the rows of the event that was read, and returns whether this could be done: if not, nothing was added.
bool EventBlock::add(std::int64_t order) {
    if (!is_well_typed()) return false;
    // Names of threads and performance counters are kept by Python's reader.
    if (is(PHASE, "M") || is(CATEGORY, words_.counted)) return false;
    const bool instant = is(CATEGORY, words_.instant);
    const bool allocates = instant && is(NAME, words_.allocation) && has_arguments_;
    if (!allocates && (instant || !is(PHASE, "X"))) return true;
    const auto start = nanoseconds(START);
    if (!start) return false;
    return allocates ? add_allocation(order, *start) : add_lasting(order, *start);
}

// Whether the values have the types that `stream.Event` and `stream.Args` have for them.
bool EventBlock::is_well_typed() const {
    bool fits = event_.has(PHASE);
    event_.for_each([&](std::size_t field) {
        const JsonValue &value = event_[field];
        switch (field) {
        case PHASE:
        case NAME:
        case CATEGORY: fits &= value.kind == Kind::STRING; break;
        case PROCESS:
        case THREAD: fits &= is_identity(value); break;
        case START: fits &= value.kind == Kind::NUMBER; break;
        case DURATION: fits &= is_kind(value, {Kind::NUMBER, Kind::NOTHING}); break;
        default: fits &= is_kind(value, {Kind::OBJECT, Kind::NOTHING}); break;
        }
    });
    arguments_.for_each([&](std::size_t argument) { fits &= has_type(argument, arguments_[argument]); });
    return fits;
}

bool EventBlock::add_lasting(std::int64_t order, std::int64_t start) {
    const auto duration = nanoseconds(DURATION);
    if (!duration) return false;
    const std::int64_t process = identity(event_.has(PROCESS), event_[PROCESS]);
    const std::int64_t thread = identity(event_.has(THREAD), event_[THREAD]);
    order_.push_back(order);
    name_.push_back(text_number(event_.has(NAME), event_[NAME]));
    category_.push_back(text_number(event_.has(CATEGORY), event_[CATEGORY]));
    start_.push_back(start);
    end_.push_back(start + *duration);
    process_.push_back(process);
    thread_.push_back(thread);
    correlation_.push_back(bounded(CORRELATION, -1, NUMBER_BELOW));
    device_.push_back(bounded(DEVICE, -1, DEVICE_BELOW));
    stream_.push_back(identity(arguments_.has(STREAM), arguments_[STREAM]));
    add_sparse();
    ++row_;
    return true;
}

bool EventBlock::add_allocation(std::int64_t order, std::int64_t at) {
    const auto total = [&](Argument argument) { return bounded(argument, -1, NUMBER_BELOW); };
    const std::array<std::int64_t, 10> row = {
        order, at, identity(event_.has(PROCESS), event_[PROCESS]), identity(event_.has(THREAD), event_[THREAD]),
        number(ADDRESS, 0), number(ALLOCATION, 0), total(ALLOCATED), total(RESERVED),
        bounded(DEVICE_TYPE, 0, DEVICE_BELOW), bounded(DEVICE_ID, -1, DEVICE_BELOW),
    };
    memory_.insert(memory_.end(), row.begin(), row.end());
    return true;
}

// Adds the rows of the tables of arguments that few events have.
void EventBlock::add_sparse() {
    const auto add = [&](Column &column, std::initializer_list<std::int64_t> row) {
        column.push_back(row_);
        column.insert(column.end(), row.begin(), row.end());
    };
    if (arguments_.has(DIMS)) add(shape_, {joined(shapes_, {DIMS, TYPES, CONCRETE})});
    if (number(AUTOGRAD, -1) >= 0) add(autograd_, {number(AUTOGRAD, -1), bounded(FORWARD_THREAD, -1, NUMBER_BELOW)});
    if (number(BYTES, -1) >= 0) add(copy_, {number(BYTES, -1)});
    if (number(GRAPH, 0) > 0) add(graph_, {number(GRAPH, 0)});
    if (arguments_.has(FINISHED) && arguments_[FINISHED].kind == Kind::FALSE) add(unfinished_, {});
    if (arguments_.has(OCCUPANCY) || arguments_.has(LIMITS))
        add(occupancy_, {joined(occupancies_, {OCCUPANCY, WARPS, BLOCKS, LIMITS})});
    if (arguments_.has(COLLECTIVE) && !arguments_[COLLECTIVE].text.empty()) add_collective(row_);
}

void EventBlock::add_collective(std::int64_t row) {
    const auto bound = [&](Argument argument, std::int64_t missing) { return bounded(argument, missing, NUMBER_BELOW); };
    const std::int64_t name = argument_text(COLLECTIVE), group = argument_text(GROUP), dtype = argument_text(DTYPE);
    const JsonValue splits{.text = arguments_.has(SPLITS) ? raw(arguments_[SPLITS]) : std::string_view()};
    const std::array<std::int64_t, 11> values = {
        row, name, group, bound(ELEMENTS, 0), bound(ELEMENTS_OUT, 0), dtype, bound(MEMBERS, 0), bound(SEQUENCE, -1),
        text_number(true, splits), bound(SOURCE, -1), bound(DESTINATION, -1),
    };
    collective_.insert(collective_.end(), values.begin(), values.end());
}

bool EventBlock::is(Field field, std::string_view text) const { return event_.has(field) && event_[field].text == text; }

std::int64_t EventBlock::number(Argument argument, std::int64_t missing) const {
    return arguments_.has(argument) ? *arguments_[argument].whole : missing;
}

// The number, or -1 if no recorder would write it.
std::int64_t EventBlock::bounded(Argument argument, std::int64_t missing, std::int64_t limit) const {
    const std::int64_t value = number(argument, missing);
    return value >= -1 && value < limit ? value : -1;
}

std::int64_t EventBlock::text_number(bool present, const JsonValue &value) {
    if (!present) return texts_.number(std::string_view());
    if (!value.escaped) return texts_.number(value.text);
    return texts_.number(unescaped(value.text));
}

std::int64_t EventBlock::argument_text(Argument argument) { return text_number(arguments_.has(argument), arguments_[argument]); }

// What a column holds for a pid, tid or stream, as `EventTable.id_of`.
std::int64_t EventBlock::identity(bool present, const JsonValue &value) {
    if (!present) return -1;
    if (value.whole) return *value.whole;
    const auto written = is_canonical(value.text) ? number_of(value.text) : std::nullopt;
    return written ? *written : FIRST_TEXT_ID - text_number(true, value);
}

// The number of some values, as the file has them, with zero bytes between them.
std::int64_t EventBlock::joined(Texts &texts, std::initializer_list<Argument> parts) {
    buffer_.clear();
    for (const Argument part : parts) {
        if (part != *parts.begin()) buffer_ += '\0';
        if (arguments_.has(part)) buffer_ += raw(arguments_[part]);
    }
    return texts.number(buffer_);
}

// A time of the event in nanoseconds; nothing if Python has to read it, as it is negative or too large.
std::optional<std::int64_t> EventBlock::nanoseconds(Field field) const {
    if (!event_.has(field) || event_[field].kind == Kind::NOTHING) return 0;
    const JsonValue &time = event_[field];
    if (time.text.front() == '-' || time.units >= MICROSECONDS_BELOW || time.decimals.size() > DECIMALS_AT_MOST) return std::nullopt;
    if (!exact_ && (time.decimals.size() > DECIMALS || time.units >= FLOAT_EXACT_BELOW)) return rounded_nanoseconds(time.text);
    std::int64_t made = time.units;
    for (std::size_t i = 0; i < DECIMALS; ++i) made = made * 10 + (i < time.decimals.size() ? time.decimals[i] - '0' : 0);
    return made;
}

// As `event_table.nanoseconds`.
std::optional<std::int64_t> EventBlock::rounded_nanoseconds(std::string_view text) const {
    const double value = PyOS_string_to_double(std::string(text).c_str(), nullptr, nullptr);
    if (value == -1.0 && PyErr_Occurred()) throw PythonError();
    const double whole = std::floor(value);
    return static_cast<std::int64_t>(whole) * 1000 + static_cast<std::int64_t>(std::nearbyint((value - whole) * 1000));
}

Ref EventBlock::result(std::string_view text, const char *complete) {
    Ref made(PyDict_New());
    const std::pair<const char *, const Column &> columns[] = {
        {"order", order_}, {"name", name_}, {"cat", category_}, {"start", start_}, {"end", end_}, {"pid", process_},
        {"tid", thread_}, {"correlation", correlation_}, {"device", device_}, {"stream", stream_},
        {"collective", collective_}, {"shape", shape_}, {"autograd", autograd_}, {"copy", copy_}, {"graph", graph_},
        {"unfinished", unfinished_}, {"occupancy", occupancy_}, {"memory", memory_}, {"left_start", left_start_},
        {"left_end", left_end_}, {"left_order", left_order_},
    };
    for (const auto &[name, column] : columns) set_item(made.get(), name, bytes_of(column));
    set_item(made.get(), "texts", list_of(texts_, false));
    set_item(made.get(), "shapes", list_of(shapes_, true));
    set_item(made.get(), "occupancies", list_of(occupancies_, true));
    set_item(made.get(), "consumed", Ref(PyLong_FromSsize_t(complete - text.data())));
    return made;
}

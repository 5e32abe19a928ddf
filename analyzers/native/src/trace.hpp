// The events of a block of a profiler trace, as the rows that `analyzers.traces.reading.event_table` keeps of them.
#pragma once

#include "interning.hpp"
#include "json.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The arguments of an event that are read, in the order of the fields of `stream.Args`.
enum Argument : std::uint8_t {
    CORRELATION, DEVICE, STREAM, COLLECTIVE, GROUP, ELEMENTS, ELEMENTS_OUT, DTYPE, MEMBERS, SEQUENCE, SOURCE, DESTINATION,
    BYTES, SIZE, GRAPH, DIMS, TYPES, CONCRETE, OCCUPANCY, LIMITS, WARPS, BLOCKS, SPLITS, AUTOGRAD, FORWARD_THREAD, ADDRESS,
    ALLOCATION, ALLOCATED, RESERVED, DEVICE_TYPE, DEVICE_ID, FINISHED, THREAD_NAME, ARGUMENTS,
};

// The fields of an event itself.
enum Field : std::uint8_t { PHASE, NAME, CATEGORY, PROCESS, THREAD, START, DURATION, ARGUMENT_FIELD, FIELDS };

// Numbers of a few texts: where the text is in the list of names.
class Names {
  public:
    void add(std::string_view name, std::uint8_t number);

    // The number of a name; NONE if it is not known.
    std::uint8_t find(std::string_view name) const;

    static constexpr std::uint8_t NONE = 0xFF;

  private:
    static std::size_t slot_of(std::string_view name);

    struct Slot {
        std::string name;
        std::uint8_t number = NONE;
    };
    std::array<Slot, 256> slots_;
};

// The words of the format, which Python's reader knows: names of arguments, and of events that are special.
struct TraceWords {
    // `words` is a tuple of texts: the names of the arguments, then the three others.
    explicit TraceWords(PyObject *words);

    Names fields, arguments;
    std::string instant, allocation, counted;
};

// A set of values by the number of their field.
template <std::size_t SIZE> class Found {
  public:
    void clear() { present_ = 0; }

    // Returns whether it is the first value of this field.
    bool set(std::size_t field, const JsonValue &value) {
        const bool is_first = !has(field);
        present_ |= std::uint64_t{1} << field;
        values_[field] = value;
        return is_first;
    }

    bool has(std::size_t field) const { return present_ >> field & 1; }
    const JsonValue &operator[](std::size_t field) const { return values_[field]; }

    // Calls `each(field)` for the fields with a value.
    template <class Each> void for_each(Each each) const {
        for (std::uint64_t rest = present_; rest; rest &= rest - 1) each(static_cast<std::size_t>(std::countr_zero(rest)));
    }

  private:
    static_assert(SIZE <= 64);

    std::uint64_t present_ = 0;
    std::array<JsonValue, SIZE> values_;
};

class EventBlock {
  public:
    // With `exact`, times are read in decimal, else as the nearest floating-point number.
    EventBlock(const TraceWords &words, bool exact) : words_(words), exact_(exact) {}

    // Reads the complete events at the beginning of a text. Returns a dict: how many bytes they take, columns, texts, and
    // where the events are that Python has to decode. Throws Unsupported if there is none, or if the text is no JSON.
    Ref read(std::string_view text);

  private:
    using Column = std::vector<std::int64_t>;

    bool read_event(Json &json);
    bool read_arguments(Json &json);
    bool add(std::int64_t order);
    bool is_well_typed() const;
    bool add_lasting(std::int64_t order, std::int64_t start);
    bool add_allocation(std::int64_t order, std::int64_t at);
    void add_sparse();
    void add_collective(std::int64_t row);

    bool is(Field field, std::string_view text) const;
    std::int64_t number(Argument argument, std::int64_t missing) const;
    std::int64_t bounded(Argument argument, std::int64_t missing, std::int64_t limit) const;
    std::int64_t text_number(bool present, const JsonValue &value);
    std::int64_t argument_text(Argument argument);
    std::int64_t identity(bool present, const JsonValue &value);
    std::int64_t joined(Texts &texts, std::initializer_list<Argument> parts);
    std::optional<std::int64_t> nanoseconds(Field field) const;
    std::optional<std::int64_t> rounded_nanoseconds(std::string_view text) const;
    Ref result(std::string_view text, const char *complete);

    const TraceWords &words_;
    const bool exact_;
    Found<FIELDS> event_;
    Found<ARGUMENTS> arguments_;
    bool has_arguments_ = false;
    Texts texts_, shapes_, occupancies_;
    std::string buffer_;
    std::int64_t row_ = 0;
    Column order_, name_, category_, start_, end_, process_, thread_, correlation_, device_, stream_;
    Column collective_, shape_, autograd_, copy_, graph_, unfinished_, occupancy_, memory_;
    Column left_start_, left_end_, left_order_;
};

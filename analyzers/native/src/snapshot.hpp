// A memory snapshot as columns. `analyzers.memory.reading.reader` says what each column means.
#pragma once

#include "machine.hpp"

#include <map>
#include <string>

// The words of a snapshot and their numbers, which Python's reader defines.
struct Vocabulary {
    std::map<std::string, int, std::less<>> actions, states, categories;
    int unknown_action, out_of_memory, unknown_category, untagged, default_state;
    std::size_t chunk;

    explicit Vocabulary(PyObject *settings);
};

class Snapshot : public Machine {
  public:
    Snapshot(PyObject *file, const Vocabulary &vocabulary);

    // Reads the file, and returns a dict of the columns as bytearrays and of what Python's reader goes on with.
    Ref read();

  protected:
    bool absorb_list(Object &list, Values items) override;
    bool absorb_dict(Object &dict, Values pairs) override;

  private:
    // The kinds of rows that dicts become.
    enum Row : std::uint8_t { ENTRY, FRAME, BLOCK };
    static constexpr std::int64_t NO_TEXT = -1;

    struct Entries {
        std::vector<std::uint8_t> action;
        std::vector<std::uint64_t> addr;
        std::vector<std::int64_t> size, time;
        std::vector<std::int32_t> stack, arena;
        std::vector<std::int8_t> category;
        std::vector<std::int64_t> label; // the number of a text, or NO_TEXT
        std::vector<bool> tagged, placed;
    };
    struct Blocks {
        std::vector<std::uint64_t> address;
        std::vector<std::int64_t> size, requested;
        std::vector<std::uint8_t> state;
        std::vector<std::int32_t> stack;
        std::vector<bool> has_address, placed;
    };
    struct BlockColumns {
        std::vector<std::int32_t> segment, stack;
        std::vector<std::uint64_t> address;
        std::vector<std::int64_t> size, requested;
        std::vector<std::uint8_t> state;
    };
    // Numbers in the order in which Python's reader meets texts, frames and stacks.
    struct Order {
        std::vector<std::int32_t> of;
        std::vector<std::uint32_t> used;
        explicit Order(std::size_t size) : of(size, -1) {}
        std::int32_t number(std::uint32_t raw);
    };

    void entry(Values pairs);
    void frame(Object &dict, Values pairs);
    void block(Values pairs);
    static std::int64_t label_of(Value value);
    std::int32_t stack_of(Value frames);
    std::int32_t arena_of(std::int64_t stream, Value pool);
    std::uint8_t action_of(Value name) const;
    int category_of(Value name);
    std::optional<Value> find(Values pairs, std::uint32_t key) const;
    Values list_or_nothing(std::optional<Value> value);
    void place(std::vector<bool> &placed, std::uint64_t row);

    Ref build(Values top);
    std::vector<std::uint32_t> entry_rows(Values traces, std::vector<std::int64_t> &counts);
    void add_entries(PyObject *made, const std::vector<std::uint32_t> &rows, const std::vector<std::int64_t> &counts);
    void add_tags(std::span<const std::uint32_t> rows, std::vector<std::int8_t> &category, std::vector<std::int32_t> &label);
    void add_blocks(PyObject *made, Values segments);
    void add_block(BlockColumns &columns, std::int32_t segment, Value block, std::uint64_t &next_address);
    Ref segment_of(Values pairs);
    void add_tables(PyObject *made);
    template <class Number> Ref frames_of_stacks(std::size_t count);
    void add_rest(PyObject *made, Values top);
    std::int32_t final_stack(std::int32_t raw);

    const Vocabulary &vocabulary_;
    std::vector<int> actions_, states_;
    std::map<std::uint32_t, int> categories_;
    Entries entries_;
    Blocks blocks_;
    Rows<std::int64_t> frames_, arenas_;
    Rows<std::uint32_t> stacks_;
    std::vector<std::uint32_t> frame_numbers_;
    std::optional<Order> text_order_, frame_order_, stack_order_, arena_order_;
};

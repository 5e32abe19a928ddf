#include "snapshot.hpp"

#include <algorithm>
#include <limits>

namespace {

// The keys of a snapshot. They are the first texts, so that the number of a text is that of its key.
enum Key : std::uint32_t {
    ACTION, ADDR, SIZE, STREAM, TIME, FRAMES, POOL, CATEGORY, METADATA, DEVICE_FREE, NAME, FILENAME, LINE, ADDRESS,
    REQUESTED, STATE, HISTORY, BLOCKS, SEGMENTS, TRACES, KEYS,
};
constexpr std::array<std::string_view, KEYS> NAMES = {
    "action", "addr", "size", "stream", "time_us", "frames", "pool_id", "category", "user_metadata", "device_free",
    "name", "filename", "line", "address", "requested_size", "state", "history", "blocks", "segments", "device_traces",
};
constexpr std::uint32_t EMPTY_TEXT = KEYS;

constexpr const char *SEGMENT_KEYS[] = {
    "stream", "segment_pool_id", "device", "address", "total_size", "segment_type", "is_expandable",
};
constexpr const char *OTHER_KEYS[] = {
    "allocator_settings", "external_annotations", "workbench", "trace_alloc_overflowed",
};

std::int64_t line_number(std::int64_t line) { return line >= 0 && line < 1LL << 31 ? line : 0; }

bool has(Values pairs, std::uint32_t key) {
    for (std::size_t i = 0; i < pairs.size(); i += 2)
        if (pairs[i].is(Tag::TEXT) && pairs[i].index() == key) return true;
    return false;
}

int integer(PyObject *dict, const char *name) {
    PyObject *value = PyDict_GetItemString(dict, name);
    if (!value) throw Unsupported();
    const long number = PyLong_AsLong(value);
    if (number == -1 && PyErr_Occurred()) throw PythonError();
    return static_cast<int>(number);
}

std::map<std::string, int, std::less<>> words(PyObject *settings, const char *name) {
    std::map<std::string, int, std::less<>> found;
    PyObject *dict = PyDict_GetItemString(settings, name), *key = nullptr, *value = nullptr;
    if (!dict || !PyDict_Check(dict)) throw Unsupported();
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
        Py_ssize_t size = 0;
        const char *text = PyUnicode_AsUTF8AndSize(key, &size);
        const long number = PyLong_AsLong(value);
        if (!text || (number == -1 && PyErr_Occurred())) throw PythonError();
        found[std::string(text, static_cast<std::size_t>(size))] = static_cast<int>(number);
    }
    return found;
}

} // namespace

Vocabulary::Vocabulary(PyObject *settings)
    : actions(words(settings, "actions")), states(words(settings, "states")), categories(words(settings, "categories")),
      unknown_action(integer(settings, "unknown_action")), out_of_memory(integer(settings, "out_of_memory")),
      unknown_category(integer(settings, "unknown_category")), untagged(integer(settings, "untagged")),
      default_state(integer(settings, "default_state")), chunk(static_cast<std::size_t>(integer(settings, "chunk"))) {}

std::int32_t Snapshot::Order::number(std::uint32_t raw) {
    if (of[raw] < 0) {
        of[raw] = static_cast<std::int32_t>(used.size());
        used.push_back(raw);
    }
    return of[raw];
}

Snapshot::Snapshot(PyObject *file, const Vocabulary &vocabulary) : Machine(file), vocabulary_(vocabulary) {
    for (const std::string_view name : NAMES) texts_.number(name);
    texts_.number(std::string_view());
    for (const auto *table : {&vocabulary.actions, &vocabulary.states})
        for (const auto &[name, number] : *table) texts_.number(std::string_view(name));
    actions_.assign(texts_.size(), vocabulary.unknown_action);
    states_.assign(texts_.size(), vocabulary.default_state);
    for (const auto &[name, number] : vocabulary.actions) actions_[texts_.number(std::string_view(name))] = number;
    for (const auto &[name, number] : vocabulary.states) states_[texts_.number(std::string_view(name))] = number;
    stacks_.number({}); // stack 0 is empty
}

Ref Snapshot::read() {
    const Value top = run();
    if (!top.is(Tag::OBJECT) || object(top.index()).shape != Shape::DICT) throw Unsupported();
    return build(content(top.index()));
}

// A list of frames becomes the number of its stack.
bool Snapshot::absorb_list(Object &list, Values items) {
    frame_numbers_.clear();
    for (const Value item : items) {
        if (!item.is(Tag::OBJECT)) return false;
        const Object &held = object(item.index());
        if (held.shape != Shape::ROW || held.kind_of_row != FRAME) return false;
        frame_numbers_.push_back(static_cast<std::uint32_t>(held.first));
    }
    list.first = stacks_.number(frame_numbers_);
    list.shape = Shape::NUMBERED;
    return true;
}

bool Snapshot::absorb_dict(Object &dict, Values pairs) {
    if (has(pairs, ACTION)) {
        entry(pairs);
        dict.first = entries_.action.size() - 1;
        dict.kind_of_row = ENTRY;
    } else if (has(pairs, FILENAME)) {
        frame(dict, pairs);
        dict.kind_of_row = FRAME;
    } else if (has(pairs, STATE) && !has(pairs, BLOCKS)) {
        block(pairs);
        dict.first = blocks_.state.size() - 1;
        dict.kind_of_row = BLOCK;
    } else {
        return false;
    }
    dict.shape = Shape::ROW;
    return true;
}

void Snapshot::entry(Values pairs) {
    std::uint8_t action = 0;
    std::uint64_t addr = 0, free_on_device = 0;
    std::int64_t size = 0, time = 0, stream = 0, label = EMPTY_TEXT;
    std::optional<Value> frames, pool, category;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
        const Value value = pairs[i + 1];
        switch (text(pairs[i])) {
        case ACTION: action = action_of(value); break;
        case ADDR: addr = unsigned_number(value); break;
        case SIZE: size = signed_number(value); break;
        case TIME: time = signed_number(value); break;
        case STREAM: stream = signed_number(value); break;
        case DEVICE_FREE: free_on_device = unsigned_number(value); break;
        case FRAMES: frames = value; break;
        case POOL: pool = value; break;
        case CATEGORY: category = value; break;
        case METADATA: label = label_of(value); break;
        default: break;
        }
    }
    entries_.action.push_back(action);
    // An `oom` entry has no address: its column has what the device had left.
    entries_.addr.push_back(action == vocabulary_.out_of_memory ? free_on_device : addr);
    entries_.size.push_back(size);
    entries_.time.push_back(time);
    entries_.stack.push_back(frames ? stack_of(*frames) : 0);
    entries_.arena.push_back(arena_of(stream, pool.value_or(Value(Tag::NONE, 0))));
    entries_.category.push_back(static_cast<std::int8_t>(category ? category_of(*category) : vocabulary_.untagged));
    entries_.tagged.push_back(category.has_value());
    entries_.label.push_back(label);
    entries_.placed.push_back(false);
}

void Snapshot::frame(Object &dict, Values pairs) {
    std::int64_t name = EMPTY_TEXT, file = EMPTY_TEXT, line = 0;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
        const Value value = pairs[i + 1];
        switch (text(pairs[i])) {
        case NAME: name = text(value); break;
        case FILENAME: file = text(value); break;
        case LINE: line = line_number(signed_number(value)); break;
        default: break;
        }
    }
    const std::int64_t row[] = {name, file, line};
    dict.first = frames_.number(row);
}

void Snapshot::block(Values pairs) {
    if (has(pairs, HISTORY)) throw Unsupported(); // torch 2.0
    const auto address = find(pairs, ADDRESS), size = find(pairs, SIZE), requested = find(pairs, REQUESTED);
    const auto frames = find(pairs, FRAMES), state = find(pairs, STATE);
    if (!size || !state) throw Unsupported();
    const std::uint32_t word = text(*state);
    blocks_.has_address.push_back(address.has_value());
    blocks_.address.push_back(address ? unsigned_number(*address) : 0);
    blocks_.size.push_back(signed_number(*size));
    blocks_.requested.push_back(signed_number(requested.value_or(*size)));
    blocks_.state.push_back(static_cast<std::uint8_t>(word < states_.size() ? states_[word] : vocabulary_.default_state));
    blocks_.stack.push_back(frames ? stack_of(*frames) : 0);
    blocks_.placed.push_back(false);
}

std::int64_t Snapshot::label_of(Value value) {
    if (value.is(Tag::NONE)) return EMPTY_TEXT;
    return value.is(Tag::TEXT) ? std::int64_t{value.index()} : NO_TEXT;
}

std::int32_t Snapshot::stack_of(Value frames) {
    if (frames.is(Tag::NONE)) return 0;
    if (!frames.is(Tag::OBJECT)) throw Unsupported();
    Object &list = object(frames.index());
    list.sealed = true;
    if (list.shape == Shape::NUMBERED) return static_cast<std::int32_t>(list.first);
    if (list.shape == Shape::LIST && !list.size) return 0;
    throw Unsupported();
}

// An arena is (stream, pool, whether the pool is known).
std::int32_t Snapshot::arena_of(std::int64_t stream, Value pool) {
    std::int64_t arena[] = {stream, -1, -1};
    if (!pool.is(Tag::NONE)) {
        if (!pool.is(Tag::OBJECT) || object(pool.index()).shape != Shape::TUPLE) throw Unsupported();
        const Values numbers = content(pool.index());
        if (numbers.size() != 2) throw Unsupported();
        arena[1] = signed_number(numbers[0]);
        arena[2] = signed_number(numbers[1]);
    }
    return static_cast<std::int32_t>(arenas_.number(arena));
}

std::uint8_t Snapshot::action_of(Value name) const {
    const std::uint32_t word = text(name);
    return static_cast<std::uint8_t>(word < actions_.size() ? actions_[word] : vocabulary_.unknown_action);
}

int Snapshot::category_of(Value name) {
    if (!name.is(Tag::TEXT)) return vocabulary_.untagged;
    const auto [known, is_new] = categories_.try_emplace(name.index(), 0);
    if (is_new) {
        std::string word(texts_.text(name.index()));
        for (char &letter : word) {
            if (static_cast<unsigned char>(letter) >= 0x80) throw Unsupported(); // Python knows more letters
            if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
        }
        const auto found = vocabulary_.categories.find(word);
        known->second = found == vocabulary_.categories.end() ? vocabulary_.unknown_category : found->second;
    }
    return known->second;
}

// The last value of a key, as in a dict.
std::optional<Value> Snapshot::find(Values pairs, std::uint32_t key) const {
    for (std::size_t i = pairs.size(); i >= 2; i -= 2)
        if (pairs[i - 2].is(Tag::TEXT) && pairs[i - 2].index() == key) return pairs[i - 1];
    return std::nullopt;
}

Values Snapshot::list_or_nothing(std::optional<Value> value) {
    if (!value || value->is(Tag::NONE)) return {};
    if (!value->is(Tag::OBJECT) || object(value->index()).shape != Shape::LIST) throw Unsupported();
    return content(value->index());
}

// A row that stands in two lists could make a small file large.
void Snapshot::place(std::vector<bool> &placed, std::uint64_t row) {
    if (placed[row]) throw Unsupported();
    placed[row] = true;
}

Ref Snapshot::build(Values top) {
    text_order_.emplace(texts_.size());
    frame_order_.emplace(frames_.size());
    stack_order_.emplace(stacks_.size());
    arena_order_.emplace(arenas_.size());
    text_order_->number(EMPTY_TEXT);
    stack_order_->number(0);
    Ref made(PyDict_New());
    std::vector<std::int64_t> counts;
    const auto rows = entry_rows(list_or_nothing(find(top, TRACES)), counts);
    set_item(made.get(), "counts", bytes_of(counts));
    add_entries(made.get(), rows, counts);
    add_blocks(made.get(), list_or_nothing(find(top, SEGMENTS)));
    add_tables(made.get());
    add_rest(made.get(), top);
    return made;
}

// The rows of the entries of all devices, one device after the other.
std::vector<std::uint32_t> Snapshot::entry_rows(Values traces, std::vector<std::int64_t> &counts) {
    std::vector<std::uint32_t> rows;
    for (const Value trace : traces) {
        if (!trace.is(Tag::OBJECT) || object(trace.index()).shape != Shape::LIST) throw Unsupported();
        const Values held = content(trace.index());
        counts.push_back(static_cast<std::int64_t>(held.size()));
        for (const Value entry : held) {
            if (!entry.is(Tag::OBJECT)) throw Unsupported();
            const Object &row = object(entry.index());
            if (row.shape != Shape::ROW || row.kind_of_row != ENTRY) throw Unsupported();
            place(entries_.placed, row.first);
            rows.push_back(static_cast<std::uint32_t>(row.first));
        }
    }
    // In which order Python's reader meets the texts of several long traces depends on how it reads the file.
    const auto filled = std::count_if(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; });
    const auto longest = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    if (filled > 1 && static_cast<std::size_t>(longest) >= vocabulary_.chunk) throw Unsupported();
    return rows;
}

void Snapshot::add_entries(PyObject *made, const std::vector<std::uint32_t> &rows, const std::vector<std::int64_t> &counts) {
    const auto pick = [&](const auto &column) {
        std::remove_cvref_t<decltype(column)> picked;
        picked.reserve(rows.size());
        for (const std::uint32_t row : rows) picked.push_back(column[row]);
        return bytes_of(picked);
    };
    set_item(made, "action", pick(entries_.action));
    set_item(made, "addr", pick(entries_.addr));
    set_item(made, "size", pick(entries_.size));
    set_item(made, "time", pick(entries_.time));
    std::vector<std::int32_t> stack, arena, label;
    std::vector<std::int8_t> category;
    std::size_t start = 0;
    for (const std::int64_t count : counts) {
        const auto trace = std::span(rows).subspan(start, static_cast<std::size_t>(count));
        start += trace.size();
        // Python's reader numbers the stacks of a chunk, then its labels.
        for (std::size_t at = 0; at < trace.size(); at += vocabulary_.chunk) {
            const auto chunk = trace.subspan(at, std::min(vocabulary_.chunk, trace.size() - at));
            for (const std::uint32_t row : chunk) {
                stack.push_back(final_stack(entries_.stack[row]));
                arena.push_back(arena_order_->number(static_cast<std::uint32_t>(entries_.arena[row])));
            }
            add_tags(chunk, category, label);
        }
    }
    set_item(made, "stack", bytes_of(stack));
    set_item(made, "arena", bytes_of(arena));
    set_item(made, "category", bytes_of(category));
    set_item(made, "label", bytes_of(label));
}

void Snapshot::add_tags(std::span<const std::uint32_t> rows, std::vector<std::int8_t> &category, std::vector<std::int32_t> &label) {
    const bool tagged = std::any_of(rows.begin(), rows.end(), [&](std::uint32_t row) { return entries_.tagged[row]; });
    for (const std::uint32_t row : rows) {
        category.push_back(entries_.category[row]);
        if (tagged && entries_.label[row] == NO_TEXT) throw Unsupported();
        label.push_back(tagged ? text_order_->number(static_cast<std::uint32_t>(entries_.label[row])) : 0);
    }
}

std::int32_t Snapshot::final_stack(std::int32_t raw) {
    const auto number = static_cast<std::uint32_t>(raw);
    if (stack_order_->of[number] >= 0) return stack_order_->of[number];
    for (const std::uint32_t frame : stacks_[number]) {
        if (frame_order_->of[frame] >= 0) continue;
        const auto row = frames_[frame];
        text_order_->number(static_cast<std::uint32_t>(row[0]));
        text_order_->number(static_cast<std::uint32_t>(row[1]));
        frame_order_->number(frame);
    }
    return stack_order_->number(number);
}

void Snapshot::add_blocks(PyObject *made, Values segments) {
    BlockColumns columns;
    Ref rows(PyList_New(0));
    std::int32_t number = 0;
    for (const Value segment : segments) {
        if (!segment.is(Tag::OBJECT) || object(segment.index()).shape != Shape::DICT) throw Unsupported();
        const Values pairs = content(segment.index());
        const auto blocks = find(pairs, BLOCKS), address = find(pairs, ADDRESS);
        if (!blocks || blocks->is(Tag::NONE)) throw Unsupported();
        std::uint64_t next = address ? unsigned_number(*address) : 0;
        for (const Value block : list_or_nothing(blocks)) add_block(columns, number, block, next);
        check(PyList_Append(rows.get(), segment_of(pairs).get()));
        ++number;
    }
    set_item(made, "segments", rows);
    set_item(made, "block_segment", bytes_of(columns.segment));
    set_item(made, "block_address", bytes_of(columns.address));
    set_item(made, "block_size", bytes_of(columns.size));
    set_item(made, "block_requested", bytes_of(columns.requested));
    set_item(made, "block_state", bytes_of(columns.state));
    set_item(made, "block_stack", bytes_of(columns.stack));
}

// Torch 2.0 left the addresses of blocks out: then it is where the block before it ended.
void Snapshot::add_block(BlockColumns &columns, std::int32_t segment, Value block, std::uint64_t &next_address) {
    if (!block.is(Tag::OBJECT)) throw Unsupported();
    const Object &held = object(block.index());
    if (held.shape != Shape::ROW || held.kind_of_row != BLOCK) throw Unsupported();
    const std::uint64_t row = held.first;
    place(blocks_.placed, row);
    const std::int64_t size = blocks_.size[row];
    if (size < 0 || next_address > std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint64_t>(size)) throw Unsupported();
    columns.segment.push_back(segment);
    columns.address.push_back(blocks_.has_address[row] ? blocks_.address[row] : next_address);
    columns.size.push_back(size);
    columns.requested.push_back(blocks_.requested[row]);
    columns.state.push_back(blocks_.state[row]);
    columns.stack.push_back(final_stack(blocks_.stack[row]));
    next_address += static_cast<std::uint64_t>(size);
}

// The keys of a segment that Python's reader looks at.
Ref Snapshot::segment_of(Values pairs) {
    Ref made(PyDict_New());
    for (const char *key : SEGMENT_KEYS)
        if (const auto value = find(pairs, texts_.number(std::string_view(key)))) set_item(made.get(), key, to_python(*value));
    return made;
}

void Snapshot::add_tables(PyObject *made) {
    std::vector<std::int64_t> frames, arenas, stack_end;
    for (const std::uint32_t frame : frame_order_->used) {
        const auto row = frames_[frame];
        frames.insert(frames.end(), {text_order_->of[static_cast<std::size_t>(row[0])], text_order_->of[static_cast<std::size_t>(row[1])], row[2]});
    }
    std::size_t end = 0;
    for (const std::uint32_t stack : stack_order_->used) {
        end += stacks_[stack].size();
        stack_end.push_back(static_cast<std::int64_t>(end));
    }
    for (const std::uint32_t arena : arena_order_->used) {
        const auto row = arenas_[arena];
        arenas.insert(arenas.end(), row.begin(), row.end());
    }
    std::vector<Value> texts;
    for (const std::uint32_t text : text_order_->used) texts.emplace_back(Tag::TEXT, text);
    set_item(made, "frames", bytes_of(frames));
    // As `interning.frame_type`: without repeats in the stacks, this is the largest column by far.
    const bool narrow = frame_order_->used.size() <= 1 << 15;
    set_item(made, "stack_frames", narrow ? frames_of_stacks<std::int16_t>(end) : frames_of_stacks<std::int32_t>(end));
    set_item(made, "stack_end", bytes_of(stack_end));
    set_item(made, "arenas", bytes_of(arenas));
    set_item(made, "texts", to_python_list(texts));
}

// The frames of all stacks, one stack after the other.
template <class Number> Ref Snapshot::frames_of_stacks(std::size_t count) {
    std::vector<Number> numbers;
    numbers.reserve(count);
    for (const std::uint32_t stack : stack_order_->used)
        for (const std::uint32_t frame : stacks_[stack]) numbers.push_back(static_cast<Number>(frame_order_->of[frame]));
    return bytes_of(numbers);
}

// The small parts of the file, which Python's reader understands.
void Snapshot::add_rest(PyObject *made, Values top) {
    Ref rest(PyDict_New());
    for (const char *key : OTHER_KEYS)
        if (const auto value = find(top, texts_.number(std::string_view(key)))) set_item(rest.get(), key, to_python(*value));
    set_item(made, "rest", rest);
}

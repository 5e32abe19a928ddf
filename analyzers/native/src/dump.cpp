#include "dump.hpp"

#include <algorithm>
#include <set>

namespace {

// The words of a dump. They are the first texts, so that the number of a text is that of its word.
enum Word : std::uint32_t {
    STATE, RETIRED, PROFILING_NAME, PROCESS_GROUP, IS_P2P, GROUP_ID, COLLECTIVE, P2P, // which each entry has
    OPERATION, RECORD, CREATED, FINISHED, TIMEOUT, FRAMES, IN_SIZES, IN_DTYPES, OUT_SIZES, OUT_DTYPES, KEYS,
    ENTRIES = KEYS, COMPLETED, STARTED, CLOSING, WORDS,
};
constexpr std::array<std::string_view, WORDS> TEXTS = {
    "state", "retired", "profiling_name", "process_group", "is_p2p", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id",
    "record_id", "time_created_ns", "time_discovered_completed_ns", "timeout_ms", "frames", "input_sizes", "input_dtypes",
    "output_sizes", "output_dtypes", "entries", "completed", "started", "nccl:coalesced",
};
constexpr std::int64_t LARGEST = std::int64_t{1} << 62;
constexpr std::uint32_t REQUIRED = (1u << (P2P + 1)) - 1;

// The columns of numbers, each with its key, and with what stands for a missing one.
struct NumberColumn {
    const char *name;
    Word key;
    std::int64_t missing;
};
constexpr NumberColumn NUMBER_COLUMNS[] = {
    {"pg_id", GROUP_ID, -1}, {"seq", COLLECTIVE, -1}, {"p2p_seq", P2P, -1}, {"record", RECORD, -1}, {"op_id", OPERATION, -1},
    {"created_ns", CREATED, 0}, {"completed_ns", FINISHED, 0}, {"timeout_ms", TIMEOUT, 0},
};

} // namespace

Dump::Dump(PyObject *file) : Machine(file) {
    static_assert(KEYS == FIELDS);
    for (const std::string_view text : TEXTS) texts_.number(text);
}

Ref Dump::without_old_entries(Value top, std::size_t tail) {
    if (!top.is(Tag::OBJECT) || object(top.index()).shape != Shape::DICT) throw Unsupported();
    const Values pairs = content(top.index());
    Ref dump(PyDict_New()), rest(Py_BuildValue("(nO)", Py_ssize_t{0}, Py_None));
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
        const Ref key = to_python(pairs[i]);
        if (!pairs[i].is(Tag::TEXT) || pairs[i].index() != ENTRIES) {
            check(PyDict_SetItem(dump.get(), key.get(), to_python(pairs[i + 1]).get()));
            continue;
        }
        if (!pairs[i + 1].is(Tag::OBJECT) || object(pairs[i + 1].index()).shape != Shape::LIST) throw Unsupported();
        rest = entries_and_columns(dump.get(), key, content(pairs[i + 1].index()), tail);
    }
    return Ref(Py_BuildValue("(OO)", dump.get(), rest.get()));
}

// Puts the entries that are kept as dicts into the dump; returns how many are left out, and the columns of the others.
Ref Dump::entries_and_columns(PyObject *dump, const Ref &key, Values entries, std::size_t tail) {
    std::vector<Facts> facts;
    facts.reserve(entries.size());
    for (const Value entry : entries) facts.push_back(facts_of(entry));
    const Kept asked = kept(facts, tail);
    const bool has_closed = close_launches(facts);
    Kept kept_here = has_closed ? kept(facts, tail) : asked;
    Ref columns(Py_NewRef(Py_None));
    // Else it may be that only unfinished entries were dumped, which Python finds out.
    if (has_closed || (!facts.empty() && facts.front().done))
        columns = columns_of(entries.subspan(kept_here.cut), std::span(facts).subspan(kept_here.cut));
    const bool in_python = columns.get() == Py_None;
    if (in_python) kept_here = asked;
    std::vector<Value> chosen;
    for (std::size_t entry = 0; entry < kept_here.cut; ++entry)
        if (kept_here.keep[entry]) chosen.push_back(entries[entry]);
    const auto left_out = static_cast<Py_ssize_t>(kept_here.cut - chosen.size());
    if (in_python) chosen.insert(chosen.end(), entries.begin() + static_cast<std::ptrdiff_t>(kept_here.cut), entries.end());
    check(PyDict_SetItem(dump, key.get(), to_python_list(chosen).get()));
    return Ref(Py_BuildValue("(nO)", left_out, columns.get()));
}

// As `reader.with_closed_launches`: an operation is done if the entry that closes its launch is. Returns whether any is so.
bool Dump::close_launches(std::vector<Facts> &entries) {
    std::map<Launch, bool> closing;
    for (const Facts &entry : entries)
        if (entry.closing) closing[entry.launch()] = entry.done;
    std::erase_if(closing, [](const auto &launch) { return !launch.second; });
    if (closing.empty()) return false;
    for (Facts &entry : entries) {
        entry.closed = !entry.done && closing.contains(entry.launch());
        entry.done |= entry.closed;
    }
    return true;
}

Dump::Fields Dump::fields_of(Value entry, std::uint32_t *present) {
    if (!entry.is(Tag::OBJECT) || object(entry.index()).shape != Shape::DICT) throw Unsupported();
    Fields found{};
    std::uint32_t seen = 0;
    const Values pairs = content(entry.index());
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
        if (!pairs[i].is(Tag::TEXT) || pairs[i].index() >= KEYS) continue;
        found[pairs[i].index()] = pairs[i + 1];
        seen |= 1u << pairs[i].index();
    }
    if (present) *present = seen;
    return found;
}

Dump::Facts Dump::facts_of(Value entry) {
    std::uint32_t present = 0;
    const Fields found = fields_of(entry, &present);
    if ((present & REQUIRED) != REQUIRED || !found[IS_P2P].is(Tag::BOOL)) throw Unsupported();
    for (const Word word : {GROUP_ID, COLLECTIVE, P2P}) // Python's reader cuts larger numbers
        if (!found[word].is(Tag::INT)) throw Unsupported();
    const std::uint32_t name = text(found[PROFILING_NAME]);
    return Facts{
        .done = is_done(found[STATE], found[RETIRED], name),
        .closing = name == CLOSING,
        .closed = false,
        .is_p2p = found[IS_P2P].payload() != 0,
        .group = found[GROUP_ID].payload(),
        .collective = found[COLLECTIVE].payload(),
        .p2p = found[P2P].payload(),
        .names = names_of(found[PROCESS_GROUP]),
    };
}

std::array<std::uint32_t, 2> Dump::names_of(Value group) {
    if (!group.is(Tag::OBJECT) || object(group.index()).shape == Shape::DICT) throw Unsupported(); // JSON has a list
    const Values names = content(group.index());
    if (names.size() != 2) throw Unsupported();
    return {text(names[0]), text(names[1])};
}

// As `dump_entry.is_done`: gloo never sets the state to completed.
bool Dump::is_done(Value state, Value retired, std::uint32_t name) {
    if (!retired.is(Tag::BOOL)) throw Unsupported();
    if (text(state) == COMPLETED) return true;
    return retired.payload() && texts_.text(name).starts_with("gloo:");
}

// The entries as columns; groups, signatures and stacks are numbers of values, which follow. None if a number is unusual.
Ref Dump::columns_of(Values entries, std::span<const Facts> facts) {
    std::array<std::vector<std::int64_t>, std::size(NUMBER_COLUMNS)> numbers;
    std::vector<std::int64_t> group, signature, stack, started, done, retired, p2p;
    Numbers<std::array<std::uint32_t, 2>> groups;
    Numbers<std::string> signatures, stacks;
    std::map<std::vector<Value>, std::int64_t> known_stacks; // most entries share the frames of others
    std::vector<Value> group_values;
    std::uint32_t present = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const Fields found = fields_of(entries[i], &present);
        for (std::size_t column = 0; column < numbers.size(); ++column) {
            const auto number = number_of(found[NUMBER_COLUMNS[column].key], NUMBER_COLUMNS[column].missing);
            if (!number) return Ref(Py_NewRef(Py_None));
            numbers[column].push_back(*number);
        }
        std::string packed;
        for (const Word word : {PROFILING_NAME, IN_SIZES, IN_DTYPES, OUT_SIZES, OUT_DTYPES})
            if (!pack(found[word], packed)) return Ref(Py_NewRef(Py_None));
        signature.push_back(signatures.number(packed));
        group.push_back(groups.number(facts[i].names));
        if (groups.of.size() > group_values.size()) group_values.push_back(found[PROCESS_GROUP]);
        const auto [known, is_new] = known_stacks.try_emplace(frames_of(found[FRAMES]), 0);
        if (is_new) {
            packed.clear();
            if (!pack_list(known->first, packed)) return Ref(Py_NewRef(Py_None));
            known->second = stacks.number(packed);
        }
        stack.push_back(known->second);
        started.push_back(text(found[STATE]) == STARTED && !facts[i].closed);
        done.push_back(facts[i].done);
        retired.push_back(found[RETIRED].payload());
        p2p.push_back(facts[i].is_p2p);
    }
    Ref made(PyDict_New());
    for (std::size_t column = 0; column < numbers.size(); ++column)
        set_item(made.get(), NUMBER_COLUMNS[column].name, bytes_of(numbers[column]));
    const std::pair<const char *, const std::vector<std::int64_t> &> others[] = {
        {"group", group}, {"signature", signature}, {"stack", stack}, {"started", started}, {"done", done},
        {"retired", retired}, {"p2p", p2p},
    };
    for (const auto &[name, column] : others) set_item(made.get(), name, bytes_of(column));
    set_item(made.get(), "groups", to_python_list(group_values));
    set_item(made.get(), "signatures", signatures.keys());
    set_item(made.get(), "stacks", stacks.keys());
    set_item(made.get(), "has_frames", Ref(PyBool_FromLong(present >> FRAMES & 1)));
    return made;
}

// As `dump_entry.whole`; nothing for what is no number, and for numbers that Python's reader cuts.
std::optional<std::int64_t> Dump::number_of(Value value, std::int64_t missing) const {
    if (value.is(Tag::NONE)) return missing;
    if (!value.is(Tag::INT) && !value.is(Tag::BIG)) return std::nullopt;
    const std::int64_t number = signed_number(value);
    return number > -LARGEST && number < LARGEST ? std::optional(number) : std::nullopt;
}

namespace {

// A type byte of MessagePack, and a number after it, which is big-endian there.
template <class Number> void put(std::string &packed, unsigned char type, Number number) {
    packed += static_cast<char>(type);
    for (std::size_t shift = 8 * sizeof(number); shift; shift -= 8)
        packed += static_cast<char>(static_cast<std::uint64_t>(number) >> (shift - 8) & 0xFF);
}

} // namespace

// Appends a value as MessagePack, tuples as lists; returns false for floats and for what is nested too deeply.
bool Dump::pack(Value value, std::string &packed, int depth) {
    switch (value.tag()) {
    case Tag::NONE: packed += '\xC0'; return true;
    case Tag::BOOL: packed += value.payload() ? '\xC3' : '\xC2'; return true;
    case Tag::INT: put(packed, 0xD3, value.payload()); return true;
    case Tag::TEXT: {
        const std::string_view text = texts_.text(value.index());
        put(packed, 0xDB, static_cast<std::uint32_t>(text.size()));
        packed += text;
        return true;
    }
    case Tag::OBJECT: return depth < PACKED_DEPTH && pack_object(value.index(), packed, depth);
    default: return false;
    }
}

bool Dump::pack_object(std::uint32_t index, std::string &packed, int depth) {
    const Shape shape = object(index).shape;
    const Values values = content(index);
    if (shape != Shape::DICT) return pack_list(values, packed, depth);
    put(packed, 0xDF, static_cast<std::uint32_t>(values.size() / 2));
    return std::all_of(values.begin(), values.end(), [&](Value value) { return pack(value, packed, depth + 1); });
}

bool Dump::pack_list(Values values, std::string &packed, int depth) {
    put(packed, 0xDD, static_cast<std::uint32_t>(values.size()));
    return std::all_of(values.begin(), values.end(), [&](Value value) { return pack(value, packed, depth + 1); });
}

// The frames of a stack; none if it is no list.
std::vector<Value> Dump::frames_of(Value frames) {
    if (!frames.is(Tag::OBJECT)) return {};
    const Shape shape = object(frames.index()).shape;
    if (shape != Shape::LIST && shape != Shape::TUPLE) return {};
    const Values held = content(frames.index());
    return {held.begin(), held.end()};
}

// Which entries Python's reader has to see: all from `cut` on, and of those before it the ones that begin or end
// something, or that may close a launch of the later ones.
Dump::Kept Dump::kept(const std::vector<Facts> &entries, std::size_t tail) {
    const auto pending = std::find_if(entries.begin(), entries.end(), [](const Facts &entry) { return !entry.done; });
    const std::size_t older = entries.size() > tail ? entries.size() - tail : 0;
    const std::size_t cut = std::min(older, static_cast<std::size_t>(pending - entries.begin()));
    std::vector<bool> keep(entries.size(), false);
    std::set<Launch> later;
    for (std::size_t i = cut; i < entries.size(); ++i) later.insert(entries[i].launch());
    std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::size_t> last;
    std::set<std::int64_t> groups;
    for (std::size_t i = 0; i < cut; ++i) {
        const Facts &entry = entries[i];
        const bool is_first = last.insert_or_assign({entry.names[0], entry.names[1], entry.is_p2p}, i).second;
        const bool begins = groups.insert(entry.group).second;
        keep[i] = i == 0 || is_first || begins || (entry.closing && later.contains(entry.launch()));
    }
    for (const auto &[key, index] : last) keep[index] = true;
    return {cut, keep};
}

#include "dump.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace {

// The words of a dump. They are the first texts, so that the number of a text is that of its word.
enum Word : std::uint32_t {
    ENTRIES, STATE, RETIRED, PROFILING_NAME, PROCESS_GROUP, IS_P2P, GROUP_ID, COLLECTIVE, P2P, COMPLETED, CLOSING, WORDS,
};
constexpr std::array<std::string_view, WORDS> TEXTS = {
    "entries", "state", "retired", "profiling_name", "process_group", "is_p2p", "pg_id", "collective_seq_id",
    "p2p_seq_id", "completed", "nccl:coalesced",
};

} // namespace

Dump::Dump(PyObject *file) : Machine(file) {
    for (const std::string_view text : TEXTS) texts_.number(text);
}

Ref Dump::read(std::size_t tail) {
    const Value top = run();
    if (!top.is(Tag::OBJECT) || object(top.index()).shape != Shape::DICT) throw Unsupported();
    const Values pairs = content(top.index());
    Ref dump(PyDict_New());
    Py_ssize_t left_out = 0;
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
        const Ref key = to_python(pairs[i]);
        if (!pairs[i].is(Tag::TEXT) || pairs[i].index() != ENTRIES) {
            check(PyDict_SetItem(dump.get(), key.get(), to_python(pairs[i + 1]).get()));
            continue;
        }
        if (!pairs[i + 1].is(Tag::OBJECT) || object(pairs[i + 1].index()).shape != Shape::LIST) throw Unsupported();
        const Values entries = content(pairs[i + 1].index());
        std::vector<Facts> facts;
        for (const Value entry : entries) facts.push_back(facts_of(entry));
        const auto pending = std::find_if(facts.begin(), facts.end(), [](const Facts &entry) { return !entry.done; });
        const std::size_t older = entries.size() > tail ? entries.size() - tail : 0;
        const auto keep = kept(facts, std::min(older, static_cast<std::size_t>(pending - facts.begin())));
        std::vector<Value> chosen;
        for (std::size_t entry = 0; entry < entries.size(); ++entry)
            if (keep[entry]) chosen.push_back(entries[entry]);
        left_out = static_cast<Py_ssize_t>(entries.size() - chosen.size());
        check(PyDict_SetItem(dump.get(), key.get(), to_python_list(chosen).get()));
    }
    return Ref(Py_BuildValue("(On)", dump.get(), left_out));
}

Dump::Facts Dump::facts_of(Value entry) {
    if (!entry.is(Tag::OBJECT) || object(entry.index()).shape != Shape::DICT) throw Unsupported();
    std::array<std::optional<Value>, WORDS> found;
    const Values pairs = content(entry.index());
    for (std::size_t i = 0; i < pairs.size(); i += 2)
        if (pairs[i].is(Tag::TEXT) && pairs[i].index() < WORDS) found[pairs[i].index()] = pairs[i + 1];
    for (const Word word : {STATE, RETIRED, PROFILING_NAME, PROCESS_GROUP, IS_P2P, GROUP_ID, COLLECTIVE, P2P})
        if (!found[word]) throw Unsupported();
    const std::uint32_t name = text(*found[PROFILING_NAME]);
    if (!found[IS_P2P]->is(Tag::BOOL)) throw Unsupported();
    for (const Word word : {GROUP_ID, COLLECTIVE, P2P}) // Python's reader cuts larger numbers
        if (!found[word]->is(Tag::INT)) throw Unsupported();
    return Facts{
        .done = is_done(*found[STATE], *found[RETIRED], name),
        .closing = name == CLOSING,
        .is_p2p = found[IS_P2P]->payload() != 0,
        .group = signed_number(*found[GROUP_ID]),
        .collective = signed_number(*found[COLLECTIVE]),
        .p2p = signed_number(*found[P2P]),
        .names = names_of(*found[PROCESS_GROUP]),
    };
}

std::array<std::uint32_t, 2> Dump::names_of(Value group) {
    if (!group.is(Tag::OBJECT) || object(group.index()).shape != Shape::TUPLE) throw Unsupported();
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

// Which entries Python's reader has to see: all from `cut` on, and of those before it the ones that begin or end
// something, or that may close a launch of the later ones.
std::vector<bool> Dump::kept(const std::vector<Facts> &entries, std::size_t cut) {
    using Launch = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
    const auto launch = [](const Facts &entry) { return Launch(entry.group, entry.collective, entry.p2p); };
    std::vector<bool> keep(entries.size(), false);
    std::set<Launch> later;
    for (std::size_t i = cut; i < entries.size(); ++i) {
        keep[i] = true;
        later.insert(launch(entries[i]));
    }
    std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::size_t> last;
    std::set<std::int64_t> groups;
    for (std::size_t i = 0; i < cut; ++i) {
        const Facts &entry = entries[i];
        const bool is_first = last.insert_or_assign({entry.names[0], entry.names[1], entry.is_p2p}, i).second;
        const bool begins = groups.insert(entry.group).second;
        keep[i] = i == 0 || is_first || begins || (entry.closing && later.contains(launch(entry)));
    }
    for (const auto &[key, index] : last) keep[index] = true;
    return keep;
}

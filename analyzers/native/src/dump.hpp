// A Flight Recorder dump without most of its completed entries, of which `analyzers.hangs.reading.reader` keeps little.
#pragma once

#include "machine.hpp"

#include <map>
#include <span>
#include <string>
#include <tuple>

class Dump : public Machine {
  public:
    explicit Dump(PyObject *file = Py_None);

    // Reads the pickle in the file, and returns (dump as a dict, (how many of its entries were left out, recent entries as a dict of
    // columns)). Recent are the last `tail` entries, and all from the first one that is not done. Left
    // out are older ones, unless they are the first or the last of their process group. Instead of the columns there is
    // None, and the recent entries are among those of the dump, if Python has to look at them.
    Ref read(std::size_t tail) { return without_old_entries(run(), tail); }

    // The same of a JSON text.
    Ref read_json(std::string_view text, std::size_t tail) { return without_old_entries(parse(text), tail); }

  protected:
    bool absorb_list(Object &, Values) override { return false; }
    bool absorb_dict(Object &, Values) override { return false; }

  private:
    static constexpr std::size_t FIELDS = 18;
    static constexpr int PACKED_DEPTH = 4;
    using Fields = std::array<Value, FIELDS>; // by word; None where the entry has no such key

    using Launch = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

    // What decides whether an entry is kept. `closed` ones are done only because their launch is.
    struct Facts {
        bool done, closing, closed, is_p2p;
        std::int64_t group, collective, p2p;
        std::array<std::uint32_t, 2> names;

        Launch launch() const { return {group, collective, p2p}; }
    };

    // The first of the recent entries, and for each older one, whether it is kept.
    struct Kept {
        std::size_t cut;
        std::vector<bool> keep;
    };

    // The numbers of distinct keys, in order of appearance.
    template <class Key> struct Numbers {
        std::map<Key, std::int64_t> of;

        std::int64_t number(const Key &key) { return of.try_emplace(key, static_cast<std::int64_t>(of.size())).first->second; }

        // The keys, which are bytes, in the order of their numbers.
        Ref keys() const {
            Ref list(PyList_New(static_cast<Py_ssize_t>(of.size())));
            for (const auto &[key, number] : of) {
                Ref item(PyBytes_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size())));
                check(PyList_SetItem(list.get(), number, item.release()));
            }
            return list;
        }
    };

    Ref without_old_entries(Value top, std::size_t tail);
    Fields fields_of(Value entry, std::uint32_t *present = nullptr);
    Facts facts_of(Value entry);
    std::array<std::uint32_t, 2> names_of(Value group);
    bool is_done(Value state, Value retired, std::uint32_t name);
    Ref entries_and_columns(PyObject *dump, const Ref &key, Values entries, std::size_t tail);
    Ref columns_of(Values entries, std::span<const Facts> facts);
    std::optional<std::int64_t> number_of(Value value, std::int64_t missing) const;
    bool pack(Value value, std::string &packed, int depth = 0);
    bool pack_object(std::uint32_t index, std::string &packed, int depth);
    bool pack_list(Values values, std::string &packed, int depth = 0);
    std::vector<Value> frames_of(Value frames);
    static bool close_launches(std::vector<Facts> &entries);
    static Kept kept(const std::vector<Facts> &entries, std::size_t tail);
};

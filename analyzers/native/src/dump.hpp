// A Flight Recorder dump without most of its completed entries, of which `analyzers.hangs.reading.reader` keeps little.
#pragma once

#include "machine.hpp"

class Dump : public Machine {
  public:
    explicit Dump(PyObject *file);

    // Reads the file, and returns a tuple: the dump as a dict, and how many of its entries were left out. Left out are
    // entries that are done, older than the last `tail` ones and than the first one that is not done, and neither the
    // first nor the last of their process group.
    Ref read(std::size_t tail);

  protected:
    bool absorb_list(Object &, Values) override { return false; }
    bool absorb_dict(Object &, Values) override { return false; }

  private:
    // What decides whether an entry is kept.
    struct Facts {
        bool done, closing, is_p2p;
        std::int64_t group, collective, p2p;
        std::array<std::uint32_t, 2> names;
    };

    Facts facts_of(Value entry);
    std::array<std::uint32_t, 2> names_of(Value group);
    bool is_done(Value state, Value retired, std::uint32_t name);
    static std::vector<bool> kept(const std::vector<Facts> &entries, std::size_t cut);
};

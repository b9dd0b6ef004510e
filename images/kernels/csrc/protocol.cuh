// How ranks meet: the slab of a rank, mailboxes and flags in it, and waiting with a bound.
//
// Every rank allocates one slab and maps those of its peers. Each of the four paths has its own regions and its
// own round counter for each block, so that no two paths, and no two blocks, ever share a byte:
//
//   push   A sender stores its row into the receiver's mailbox; the receiver polls the data itself. An empty
//          mailbox holds 0xffff in every place (a NaN that no sender sends); who has read a vector empties it.
//   pull   A sender stores into its own slab and raises a flag in the reader's slab (release, 128-byte line with
//          one writer); the reader waits for it (acquire) and loads over the bus.
//
// Rounds are counted on the device, by block: round e uses half e & 1 of each region. A graph that is replayed
// counts like any other launch. Why two halves are enough: a rank writes half h again in round e + 2. It is
// there only after its round e + 1 ended, which needed something of round e + 1 from every rank, at first or at
// second hand; and a rank sends in round e + 1 only after its kernel of round e ended, with all reading and
// emptying of half h done. A block b of one rank talks to block b of the others alone, so the argument holds for
// each block by itself, however the number of rows changes from round to round.
#pragma once

#include "bf16.cuh"

namespace blackwell_kernels {

constexpr int kMaxWorld = 8;
constexpr int kMaxThreads = 1024;
constexpr uint32_t kEmpty = 0xffffffffu;
constexpr uint64_t kLine = 128;

enum Path : int { kPushOneShot, kPushTwoShot, kPullOneShot, kPullTwoShot, kPaths };
enum Kind : int { kPlain, kAdd, kNormOfUnrounded, kNormOfRounded, kMhc, kKinds };
enum Stage : int { kStageOneShot, kStageScatter, kStageGather, kStages };

// Byte offsets into a slab; equal on all ranks of a group.
struct Layout {
  uint64_t row;         // stride of a row in every region
  uint64_t rounds;      // uint32 [kPaths][kKinds]: rounds done, for reports
  uint64_t lock;        // uint32: first thread to give up
  uint64_t epochs;      // uint32 [kPaths][blocks]: last round of a block
  uint64_t flags;       // kLine [kStages][blocks][world]
  uint64_t pull_one;    // row [2][one_shot_rows]
  uint64_t pull_rows;   // row [2][groups * world]
  uint64_t pull_sums;   // row [2][groups]
  uint64_t push_one;    // row [2][world][one_shot_rows]
  uint64_t push_rows;   // row [2][world][groups]
  uint64_t push_sums;   // row [2][groups * world]
  uint64_t bytes;
  int32_t world;
  int32_t blocks;         // most blocks of any launch
  int32_t path_blocks[kPaths];  // of a path's launches; row (or group) r is always block r % path_blocks's work
  int32_t one_shot_rows;  // most rows of a one-shot round
  int32_t groups;         // two-shot: groups of `world` consecutive rows
};

inline Layout make_layout(int world, int rows, int one_shot_rows, int hidden, const int* path_blocks) {
  Layout layout{};
  layout.world = world;
  for (int path = 0; path < kPaths; ++path) {
    layout.path_blocks[path] = path_blocks[path];
    layout.blocks = path_blocks[path] > layout.blocks ? path_blocks[path] : layout.blocks;
  }
  const uint64_t blocks = layout.blocks;
  layout.one_shot_rows = one_shot_rows;
  layout.groups = (rows + world - 1) / world;
  layout.row = static_cast<uint64_t>(hidden) * 2;
  uint64_t at = 0;
  auto take = [&at](uint64_t bytes) {
    const uint64_t place = at;
    at += (bytes + kLine - 1) / kLine * kLine;
    return place;
  };
  const uint64_t groups = layout.groups, one = one_shot_rows;
  layout.rounds = take(sizeof(uint32_t) * kPaths * kKinds);
  layout.lock = take(sizeof(uint32_t));
  layout.epochs = take(sizeof(uint32_t) * kPaths * blocks);
  layout.flags = take(kLine * kStages * blocks * world);
  layout.pull_one = take(2 * one * layout.row);
  layout.pull_rows = take(2 * groups * world * layout.row);
  layout.pull_sums = take(2 * groups * layout.row);
  layout.push_one = take(2 * world * one * layout.row);
  layout.push_rows = take(2 * world * groups * layout.row);
  layout.push_sums = take(2 * groups * world * layout.row);
  layout.bytes = at;
  return layout;
}

// What the first thread that gave up saw; in memory of the host, since a trap takes the context with it.
struct Diagnosis {
  uint32_t valid, rank, peer, path, stage, block, thread, round, seen;
};

struct Arguments {
  uint8_t* slab[kMaxWorld];  // by rank, in this process's address space
  Layout layout;
  const uint4* x;
  const uint4* residual;
  const uint4* weight;
  uint4* out;
  uint4* residual_out;
  Diagnosis* diagnosis;
  uint64_t patience;  // nanoseconds that a thread waits for one peer
  float eps;
  int32_t rows;
  int32_t vectors;  // of a row: hidden / 8, which is also the number of threads of a block
  int32_t rank;
  int32_t kind;
  int32_t traps;  // whether giving up ends the kernel with a trap, or is only noted
};

BK_DEVICE uint4* vector_at(uint8_t* slab, uint64_t region, uint64_t stride, uint64_t row) {
  return reinterpret_cast<uint4*>(slab + region + row * stride) + thread_index();
}

BK_DEVICE uint32_t* flag_at(const Arguments& a, int owner, Stage stage, int writer) {
  const uint64_t line =
      (static_cast<uint64_t>(stage) * a.layout.blocks + block_index()) * a.layout.world + writer;
  return reinterpret_cast<uint32_t*>(a.slab[owner] + a.layout.flags + line * kLine);
}

BK_DEVICE bool arrived(const uint4& vector) {
  return vector.x != kEmpty && vector.y != kEmpty && vector.z != kEmpty && vector.w != kEmpty;
}

// A pair of NaNs with all bits set is the mark of an empty mailbox: send another pair of NaNs for it.
BK_DEVICE uint4 sendable(uint4 vector) {
  if (vector.x == kEmpty) vector.x = 0x7fff7fffu;
  if (vector.y == kEmpty) vector.y = 0x7fff7fffu;
  if (vector.z == kEmpty) vector.z = 0x7fff7fffu;
  if (vector.w == kEmpty) vector.w = 0x7fff7fffu;
  return vector;
}

// Right for rounds on both sides of 2^32.
BK_DEVICE bool reached(uint32_t seen, uint32_t round) { return static_cast<int32_t>(seen - round) >= 0; }

// One round of one path, as one thread sees it.
struct Round {
  const Arguments& a;
  Path path;
  uint32_t number;
  int half;
  uint64_t since = 0;
  uint32_t polls = 0;
  bool gave_up = false;

  BK_DEVICE Round(const Arguments& arguments, Path which) : a(arguments), path(which) {
    number = load_own(epoch_place()) + 1;
    half = static_cast<int>(number & 1u);
  }

  BK_DEVICE uint32_t* epoch_place() const {
    return reinterpret_cast<uint32_t*>(a.slab[a.rank] + a.layout.epochs) + path * a.layout.blocks + block_index();
  }

  // Whether to look again; the clock is read once in many polls, so a peer that is in time costs nothing.
  BK_DEVICE bool patient(int peer, Stage stage, uint32_t seen) {
    if (gave_up) return false;
    if ((++polls & 0xffu) != 0) return true;
    const uint64_t now = nanoseconds();
    if (since == 0) since = now;
    if (now - since < a.patience) return true;
    give_up(peer, stage, seen);
    return false;
  }

  BK_DEVICE void give_up(int peer, Stage stage, uint32_t seen) {
    gave_up = true;
    const bool first = take_lock(reinterpret_cast<uint32_t*>(a.slab[a.rank] + a.layout.lock));
    if (first) {
      volatile Diagnosis* report = a.diagnosis;
      report->rank = static_cast<uint32_t>(a.rank);
      report->peer = static_cast<uint32_t>(peer);
      report->path = static_cast<uint32_t>(path);
      report->stage = static_cast<uint32_t>(stage);
      report->block = static_cast<uint32_t>(block_index());
      report->thread = static_cast<uint32_t>(thread_index());
      report->round = number;
      report->seen = seen;
      fence_system();
      report->valid = 1;
      fence_system();
    }
    if (a.traps) stop_kernel(first);
  }

  // What a peer pushed into a mailbox of ours; `seen` is what an earlier load found there. Empties the mailbox.
  BK_DEVICE uint4 receive(uint4* mailbox, uint4 seen, int peer, Stage stage) {
    while (!arrived(seen)) {
      if (!patient(peer, stage, seen.x)) return seen;
      seen = load_system(mailbox);
    }
    since = 0;
    *mailbox = uint4{kEmpty, kEmpty, kEmpty, kEmpty};
    return seen;
  }

  // All that this block stored before becomes visible to `to`'s block of the same number.
  BK_DEVICE void raise(int to, Stage stage) { store_release_system(flag_at(a, to, stage, a.rank), number); }

  BK_DEVICE void await(int from, Stage stage) {
    const uint32_t* flag = flag_at(a, a.rank, stage, from);
    uint32_t seen = load_acquire_system(flag);
    while (!reached(seen, number)) {
      if (!patient(from, stage, seen)) return;
      seen = load_acquire_system(flag);
    }
    since = 0;
  }

  // Ends the round. The barrier: nobody may still have to read the number.
  BK_DEVICE void finish() {
    block_barrier();
    if (thread_index() != 0) return;
    store_own(epoch_place(), number);
    if (block_index() == 0) {
      uint32_t* count = reinterpret_cast<uint32_t*>(a.slab[a.rank] + a.layout.rounds) + static_cast<int>(path) * kKinds + a.kind;
      store_own(count, load_own(count) + 1);
    }
  }
};

}  // namespace blackwell_kernels

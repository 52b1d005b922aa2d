// The work that was sent to the device and has not run yet: a queue for each stream. Nothing runs before something is waited for.
//
// A wait runs what it waits for, in an order drawn by a seed from those that CUDA allows: among the first pieces of all queues
// whose conditions are met. In about half of the waits it runs nothing else, so that whatever is not waited for is as late as can be;
// in the others some of the rest runs too, also early. All of it is called with one lock held (fakecuda.cpp).
#pragma once
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

struct Stream;
struct Capture;

struct Work {
  Stream* stream;
  unsigned long long number;                 // in the order in which the host sent it
  std::function<std::string()> run;          // says what went wrong, or ""
  std::vector<std::shared_ptr<Work>> after;  // what it waits for, beside those before it in its queue
  bool done = false;

  bool ready() const {
    for (auto& other : after)
      if (!other->done) return false;
    return true;
  }
};
using Ticket = std::shared_ptr<Work>;

struct Stream {
  bool blocking = true;  // not CU_STREAM_NON_BLOCKING: in order with the legacy default stream
  Capture* capture = nullptr;  // under way (fakecuda.cpp): what the stream gets goes there
  bool left = false;     // destroyed by the host; it goes when its queue is empty
  std::deque<Ticket> queue;
  Ticket last;                    // the newest piece, done or not
  unsigned long long wanted = 0;  // by the wait at hand: up to this number
};

class Queues {
 public:
  Stream legacy;
  std::vector<Stream*> streams{&legacy};
  std::mt19937_64 random{seed()};

  static unsigned long long seed() {
    const char* text = getenv("MINICAFFE_TEST_DEVICE_SEED");
    return text ? strtoull(text, nullptr, 10) : 0;
  }

  bool idle() const { return pending == 0; }

  Stream* create(bool blocking) {
    auto* stream = new Stream;
    stream->blocking = blocking;
    streams.push_back(stream);
    return stream;
  }

  void destroy(Stream* stream) {
    stream->left = true;
    sweep();
  }

  // At the end of a stream's queue, after `other` too. The legacy default stream and the blocking ones wait for each other.
  Ticket send(Stream* stream, std::function<std::string()> run, Ticket other = nullptr) {
    auto work = std::make_shared<Work>(Work{stream, ++sent, std::move(run), {}});
    if (other && !other->done) work->after.push_back(other);
    if (stream == &legacy) {
      for (Stream* one : streams)
        if (one != stream && one->blocking && !one->queue.empty()) work->after.push_back(one->queue.back());
    } else if (stream->blocking && !legacy.queue.empty()) {
      work->after.push_back(legacy.queue.back());
    }
    stream->queue.push_back(work);
    stream->last = work;
    if (++pending > most_pending) while (pending > most_pending / 2) run_one(heads(true));
    return work;
  }

  void wait(const std::vector<Ticket>& for_these) {
    for (Stream* stream : streams) stream->wanted = 0;
    for (auto& work : for_these) want(work);
    static const unsigned chances[] = {0, 0, 20, 90};  // of a hundred: that a piece is taken from all
    unsigned chance = chances[random() % 4];
    auto open = [&] {
      for (auto& work : for_these)
        if (work && !work->done) return true;
      return false;
    };
    while (open()) run_one(heads(random() % 100 < chance));
    sweep();
  }
  void wait(const Ticket& work) { wait(std::vector<Ticket>{work}); }
  void wait_all() {
    std::vector<Ticket> all;
    for (Stream* stream : streams) all.push_back(stream->last);
    wait(all);
  }

  // One piece that is wanted, whatever else: a device makes progress while the host asks whether it is done.
  void step(const Ticket& work) {
    for (Stream* stream : streams) stream->wanted = 0;
    want(work);
    run_one(heads(false));
  }

  // What went wrong since the last call, "" for nothing. As on a GPU, a wait says it, not the launch.
  std::string finding() { return std::exchange(found, ""); }

 private:
  static const size_t most_pending = 20000;
  unsigned long long sent = 0;
  size_t pending = 0;
  std::string found;

  void want(const Ticket& work) {
    std::vector<Ticket> open{work};
    while (!open.empty()) {
      Ticket one = open.back();
      open.pop_back();
      if (!one || one->done || one->number <= one->stream->wanted) continue;
      for (auto& before : one->stream->queue)
        if (before->number > one->stream->wanted && before->number <= one->number)
          open.insert(open.end(), before->after.begin(), before->after.end());
      one->stream->wanted = one->number;
    }
  }

  std::vector<Stream*> heads(bool all) const {
    std::vector<Stream*> found;
    for (Stream* stream : streams)
      if (!stream->queue.empty() && (all || stream->queue.front()->number <= stream->wanted) && stream->queue.front()->ready())
        found.push_back(stream);
    return found;
  }

  void run_one(const std::vector<Stream*>& from) {
    if (from.empty()) fprintf(stderr, "CPU test device: nothing can run\n"), abort();
    Stream* stream = from[random() % from.size()];
    Ticket work = stream->queue.front();
    std::string wrong = work->run ? work->run() : "";
    if (found.empty()) found = wrong;
    work->done = true;
    work->run = nullptr;
    work->after.clear();
    stream->queue.pop_front();
    --pending;
  }

  void sweep() {
    std::erase_if(streams, [](Stream* stream) {
      bool gone = stream->left && stream->queue.empty();
      if (gone) delete stream;
      return gone;
    });
  }
};

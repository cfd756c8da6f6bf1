// A switch's port: queues by class, marks by the straight line on the instantaneous queue.
#pragma once

#include "conga.h"
#include "random.h"
#include "roce_buffer.h"
#include "roce_line.h"
#include "roce_packet.h"
#include "roce_pause.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace closloop::roce {

class Watch;

// One class' queue at a port, with its counters.
struct Queue {
    int64_t limit_bytes, quantum_bytes;
    int64_t kmin_bytes, kmax_bytes; // beyond the limit at first: nothing is marked
    int64_t max_p = 0;              // the probability at kmax, as a share of 2^32
    Fifo packets;
    int64_t backlog_bytes = 0, deficit_bytes = 0;
    int64_t tx_bytes = 0, tx_packets = 0, marked = 0, dropped = 0;
    // with a shared buffer: the class of what comes in here, null if it may be dropped
    PriorityGroup* group = nullptr;
    bool stopped = false; // by the peer
    // what the watchdog makes of that
    Watch* watch = nullptr;
    bool ignores_pauses = false, discards = false;
};

class Switch;

class Port : public End, public Pauses, private Obeys {
  public:
    // `first_queue` is the number of its first queue among all of the fabric's.
    Port(Switch* owner, Line line, uint64_t seed, bool marks_departures, int64_t first_queue,
         const Clock* clock, Packets* packets)
        : line_(line), owner_(owner), random_(seed), marks_departures_(marks_departures),
          first_queue_(first_queue), clock_(clock), packets_(packets),
          timers_(line.rate_bps(), clock, this) {}

    void AddQueue(int64_t limit_bytes, int64_t quantum_bytes) {
        queues_.push_back({limit_bytes, quantum_bytes, limit_bytes + 1, limit_bytes + 1});
    }

    // Lets it have a part in the buffer of its switch. Its queues' own limits do not count then.
    void Share(SharedBuffer* buffer, int64_t headroom_bytes) {
        buffer_ = buffer;
        for (size_t i = 0; i < queues_.size(); ++i) {
            if (buffer->settings().lossless[i] != 0) {
                queues_[i].group = buffer->AddGroup(this, static_cast<uint8_t>(i), headroom_bytes,
                                                    line_.rate_bps());
            }
        }
    }

    const Switch& owner() const { return *owner_; }
    Line& line() { return line_; }
    const Line& line() const { return line_; }
    size_t classes() const { return queues_.size(); }
    Queue& queue(size_t klass) { return queues_[klass]; }
    const Queue& queue(size_t klass) const { return queues_[klass]; }
    int64_t first_queue() const { return first_queue_; }
    const PauseTimers& timers() const { return timers_; }
    size_t priority(size_t klass) const {
        return static_cast<size_t>(buffer_->settings().priority[klass]);
    }
    void SetCut(bool cut) { cut_ = cut; }
    bool is_cut() const { return cut_; }
    conga::Load& load() { return load_; }

    // Of all classes.
    int64_t waiting_bytes() const {
        int64_t all = 0;
        for (const Queue& queue : queues_) {
            all += queue.backlog_bytes;
        }
        return all;
    }

    void Arrive(Packet* packet) override;

    // A packet that came in by `in` wants to leave here. False: there is no room for it.
    bool Put(Packet* packet, const Port& in) {
        Queue& queue = queues_[packet->klass];
        if (!Admits(queue, packet, in)) {
            ++queue.dropped;
            return false;
        }
        if (!marks_departures_) {
            Mark(queue, packet);
        }
        if (queue.packets.empty() && !queue.stopped) {
            Join(packet->klass);
        }
        queue.packets.Put(packet);
        queue.backlog_bytes += packet->bytes;
        SendIfFree();
        return true;
    }

    void SendPause(uint8_t priorities, uint16_t quanta) override {
        control_.Put(PauseFrame(*packets_, priorities, quanta));
        SendIfFree();
    }

    // Drops what waits in a queue.
    void Discard(size_t klass) {
        Queue& queue = queues_[klass];
        while (!queue.packets.empty()) {
            Packet* packet = queue.packets.Take();
            queue.backlog_bytes -= packet->bytes;
            ++queue.dropped;
            buffer_->Release(*packet);
            packets_->Done(packet);
        }
        Rejoin(klass);
    }

    // The peer's pauses of a class, or whether they count, have changed.
    void Rejoin(size_t klass) {
        Queue& queue = queues_[klass];
        queue.stopped = timers_.stopped(priority(klass)) && !queue.ignores_pauses;
        bool may_send = !queue.packets.empty() && !queue.stopped;
        auto turn = std::find(turns_.begin(), turns_.end(), klass);
        if (may_send && turn == turns_.end()) {
            Join(static_cast<uint8_t>(klass));
            SendIfFree();
        } else if (!may_send && turn != turns_.end()) {
            turns_.erase(turn);
        }
    }

  private:
    bool Admits(const Queue& queue, Packet* packet, const Port& in) {
        if (buffer_ == nullptr) {
            return queue.backlog_bytes + packet->bytes <= queue.limit_bytes;
        }
        return !queue.discards &&
               buffer_->Admit(packet, in.queues_[packet->klass].group, queue.backlog_bytes);
    }

    void Join(uint8_t klass) {
        queues_[klass].deficit_bytes = queues_[klass].quantum_bytes;
        turns_.push_back(klass);
    }

    void Obey(size_t priority) override;

    void SendIfFree() {
        if (waits_for_line_ || (turns_.empty() && control_.empty())) {
            return;
        }
        int64_t now_ps = clock_->Now();
        if (line_.free_ps() <= now_ps) {
            SendNext(now_ps);
        } else {
            waits_for_line_ = true;
            clock_->At(line_.free_ps(), &line_free_);
        }
    }

    // Whether a packet that leaves so many bytes behind it, or finds so many before it, is marked.
    void Mark(Queue& queue, Packet* packet) {
        int64_t above = queue.backlog_bytes - queue.kmin_bytes;
        if (above < 0) {
            return;
        }
        int64_t span = queue.kmax_bytes - queue.kmin_bytes;
        if (above < span && int64_t{random_.Next32()} * span >= queue.max_p * above) {
            return;
        }
        if (packet->capable) {
            packet->marked = true;
            ++queue.marked;
        }
    }

    // The class whose turn it is: deficit round robin, at least a frame a turn.
    Queue& Next() {
        if (queues_.size() > 1) {
            while (queues_[turns_.front()].packets.front().bytes >
                   queues_[turns_.front()].deficit_bytes) {
                queues_[turns_.front()].deficit_bytes += queues_[turns_.front()].quantum_bytes;
                turns_.push_back(turns_.front());
                turns_.pop_front();
            }
        }
        return queues_[turns_.front()];
    }

    // Sends what is next, pause frames first. All that comes of it finds the line taken.
    void SendNext(int64_t now_ps) {
        waits_for_line_ = true;
        if (!control_.empty()) {
            Packet* frame = control_.Take();
            control_bytes_ += frame->bytes + line_.framing_bytes();
            line_.Send(frame, now_ps, *clock_);
        } else if (!turns_.empty()) {
            SendData(now_ps);
        }
        waits_for_line_ = !turns_.empty() || !control_.empty();
        if (waits_for_line_) {
            clock_->At(line_.free_ps(), &line_free_);
        }
    }

    void SendData(int64_t now_ps) {
        Queue& queue = Next();
        Packet* packet = queue.packets.Take();
        queue.deficit_bytes -= packet->bytes;
        queue.backlog_bytes -= packet->bytes;
        queue.tx_bytes += packet->bytes;
        ++queue.tx_packets;
        if (queue.packets.empty()) {
            turns_.pop_front();
        }
        if (marks_departures_) {
            Mark(queue, packet);
        }
        if (packet->telemetry) {
            AddTelemetry(packet, now_ps);
        }
        line_.Send(packet, now_ps, *clock_);
        if (buffer_ != nullptr) {
            buffer_->Release(*packet);
        }
    }

    // Of all classes, and with their framing: what the line can send.
    void AddTelemetry(Packet* packet, int64_t now_ps) const {
        int64_t sent = control_bytes_ - (packet->bytes + line_.framing_bytes()), left = 0;
        for (const Queue& queue : queues_) {
            sent += queue.tx_bytes + queue.tx_packets * line_.framing_bytes();
            left += queue.backlog_bytes;
        }
        packet->seen.Add(static_cast<uint32_t>(first_queue_), Ns(now_ps), sent, left,
                         line_.rate_bps());
    }

    void LineFree() { SendNext(clock_->Now()); }

    Line line_;
    Switch* owner_;
    Random random_;
    bool marks_departures_, cut_ = false;
    bool waits_for_line_ = false; // LineFree will be called when it is free
    int64_t first_queue_;
    const Clock* clock_;
    Packets* packets_;
    std::vector<Queue> queues_;
    std::deque<uint8_t> turns_; // classes that have packets and may send, the next first
    Fifo control_;              // pause frames
    int64_t control_bytes_ = 0; // that were sent, with their framing
    SharedBuffer* buffer_ = nullptr;
    conga::Load load_;
    PauseTimers timers_;
    Call<Port, &Port::LineFree> line_free_{this};
};

} // namespace closloop::roce

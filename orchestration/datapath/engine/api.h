/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the library offers. Python reads this file too (library.py): declarations and numbers only.
 *
 * An engine is a fabric of switches and RoCE NICs, and the flows that these send. It is made from
 * arrays, run until a time, and read and set in between. Times are ns since the trial's time 0, and
 * CL_NEVER for what has not happened. Ports and queues have the numbers of the testbed's arrays.
 * What goes wrong gives a negative number or NULL, and a text.
 */
#define CL_API_VERSION 1
#define CL_ERROR_BYTES 256
#define CL_CLASSES 8
#define CL_PARAMETERS 24
#define CL_INCIDENT_QUEUES 24

struct cl_engine;
struct cl_policy;

/* What is the same for the whole fabric. `alpha` are shares of 2^16. */
struct cl_fabric {
	uint64_t detect_ns, restore_ns; /* the watchdog's; detect_ns 0: there is none */
	uint32_t devices, ports, queues, classes;
	uint32_t framing_bytes;    /* what each packet takes on the wire besides its bytes */
	uint32_t marks_departures; /* 1: mark what leaves, by what it leaves behind; 0: what arrives */
	uint32_t shared_buffer;    /* 1: the ports of a switch share its buffer */
	uint32_t xoff_bytes;       /* of lossless classes, in place of alpha; 0: none */
	uint32_t xon_offset_bytes;
	uint32_t quanta;
	uint32_t lossless;         /* classes, as bits */
	uint32_t action;           /* the watchdog's: 0 says so, 1 drops, 2 forwards */
	uint32_t alpha[8], priority[8];
	uint32_t quantum_bytes[8]; /* of deficit round robin */
};

struct cl_device {
	uint32_t is_switch;
	uint32_t ecmp_seed;
	uint32_t pool_bytes; /* of a switch with a shared buffer: what is shared, without the headroom */
	uint32_t number;     /* of a switch: its place in what cl_engine_buffers gives */
};

struct cl_port {
	uint64_t rate_bps, delay_ns; /* of its cable */
	uint64_t seed;               /* of the stream that marking draws from */
	uint32_t device, peer;
	uint32_t first_queue;        /* of a switch's port */
	uint32_t headroom_bytes;     /* of a switch's port, for each lossless class */
	uint32_t address;            /* of a host's port: IPv4, as a number */
	uint32_t unused;
};

/* What is the same for all NICs, and their first parameters. */
struct cl_nics {
	uint64_t cnp_interval_ns, timeout_ns;
	uint32_t payload_bytes, ack_every, window_bytes, unused;
	uint32_t parameters[24];
};

/* Flows are ordered by their starts. */
struct cl_flow {
	uint64_t start_ns, bytes;
	uint32_t src_port, dst_port;
	uint16_t udp_source;
	uint8_t klass;
	uint8_t is_ecn_capable;
	uint32_t unused;
};

struct cl_flow_result {
	uint64_t sent_ns;     /* when its first bit was sent */
	uint64_t received_ns; /* when the receiver had all of it */
	uint64_t done_ns;     /* when the sender knew */
	uint64_t rate_bps;
	uint64_t rtt_ns;      /* the last one that was measured, 0 if none was */
	uint64_t rtt_sum_ns;  /* of all that were, and `rtts` how many */
	uint64_t acked_bytes; /* of its payload */
	uint32_t packets, resent, marked, cnps, naks, timeouts, probes, rtts;
};

struct cl_queue_state {
	uint64_t tx_bytes, tx_packets, marked_packets, dropped_packets;
	uint32_t backlog_bytes, kmin_bytes, kmax_bytes;
	uint32_t max_p; /* the marking probability at kmax, as a share of 2^32 */
};

struct cl_pause_state {
	uint64_t frames_received, paused_ns, frames_sent, stopping_ns;
	uint32_t held_bytes, headroom_bytes;
};

struct cl_buffer_state {
	uint64_t lossless_drops;
	uint32_t used_bytes, headroom_bytes;
};

struct cl_nic_state {
	uint64_t cnps, resent, rtt_ns;
	uint64_t rate_bps; /* the sum of those of its unfinished flows */
	uint64_t received_packets, out_of_order_packets, timeouts;
	uint32_t port, flows; /* unfinished ones */
};

/* Queues from the one that is stuck, each waiting for the next. */
struct cl_incident {
	uint64_t at_ns;
	uint32_t kind;  /* 0 deadlock, 1 storm, 2 congestion, 3 restored */
	uint32_t count;
	uint32_t begin; /* of the circle, of a deadlock */
	uint32_t queue[24];
	uint32_t unused;
};

/* Of the whole fabric. A hop is a packet that leaves a NIC or a switch's port. */
struct cl_counts {
	uint64_t hops;
	uint64_t data_sent, data_received, data_dropped;
	uint64_t bytes_sent, bytes_received, bytes_dropped; /* of all packets between NICs */
	uint64_t pauses; /* frames that tell a peer to stop */
	uint32_t flows_received, flows_done;
};

uint32_t cl_api_version(void);
/* A congestion control that the library has, by its name; NULL if it has none of it. */
const struct cl_policy *cl_policy_named(const char *name);
/* `limit_bytes` has each queue's limit. NULL with the reason in `error`. */
struct cl_engine *cl_engine_new(const struct cl_fabric *fabric, const struct cl_device *devices,
				const struct cl_port *ports, const uint32_t *limit_bytes,
				char *error);
void cl_engine_free(struct cl_engine *engine);
const char *cl_engine_error(const struct cl_engine *engine);
/* Post all flows, once, before the engine runs. */
int cl_engine_post(struct cl_engine *engine, const struct cl_policy *policy,
		   const struct cl_nics *nics, const struct cl_flow *flows, uint32_t count);
/* Let everything happen until `until_ns`, that included. Returns 1 once that has been reached, and 0
 * earlier, after the time that about `hops` hops take: call it again.
 */
int cl_engine_run(struct cl_engine *engine, uint64_t until_ns, uint64_t hops);
uint64_t cl_engine_now(const struct cl_engine *engine);

/* What is now. `state` has room for all queues, switches or NICs; NICs are in the order of ports. */
void cl_engine_queues(struct cl_engine *engine, struct cl_queue_state *state);
void cl_engine_pauses(struct cl_engine *engine, struct cl_pause_state *state);
void cl_engine_buffers(struct cl_engine *engine, struct cl_buffer_state *state);
void cl_engine_nics(struct cl_engine *engine, struct cl_nic_state *state);
void cl_engine_flows(const struct cl_engine *engine, struct cl_flow_result *result);
void cl_engine_counts(const struct cl_engine *engine, struct cl_counts *counts);
/* Returns how many incidents there were; writes `room` of them at most. */
uint32_t cl_engine_incidents(const struct cl_engine *engine, struct cl_incident *incident,
			     uint32_t room);
/* A number that differs if any state of ports, queues or flows does. */
uint64_t cl_engine_digest(const struct cl_engine *engine);

int cl_engine_set_thresholds(struct cl_engine *engine, uint32_t count, const uint32_t *queue,
			     const uint32_t *kmin_bytes, const uint32_t *kmax_bytes,
			     const uint32_t *max_p);
/* Of NICs, by their ports: CL_PARAMETERS for each, and the interval of CNPs. */
int cl_engine_set_parameters(struct cl_engine *engine, uint32_t count, const uint32_t *port,
			     const uint32_t *parameters, const uint64_t *cnp_interval_ns);
int cl_engine_get_parameters(const struct cl_engine *engine, uint32_t count, const uint32_t *port,
			     uint32_t *parameters, uint64_t *cnp_interval_ns);

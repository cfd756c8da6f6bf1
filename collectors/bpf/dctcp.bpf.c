/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * DCTCP as a congestion control of TCP, where the kernel has none (orchestration/agent/bpf/congestion.py).
 * From RFC 8257 and Alizadeh et al., SIGCOMM 2010; numbers in comments are the RFC's sections.
 *
 * The kernel's TCP asks `ssthresh` once a window if that window has marks, or a loss, and brings
 * the window there. It does not say which of the two: after a loss it enters a state that says so.
 *
 * Fields of the kernel's structures have addresses that are their offsets: the loader puts in the
 * running kernel's (orchestration/agent/bpf/btf.py). "__" stands for the dot.
 */

typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

struct sock; /* what the kernel passes: a tcp_sock, for programs of this type */

#define FIELDS(_)                                                                                  \
	_(tcp_sock__snd_cwnd)                                                                          \
	_(tcp_sock__snd_ssthresh)                                                                      \
	_(tcp_sock__prior_cwnd)                                                                        \
	_(tcp_sock__snd_una)                                                                           \
	_(tcp_sock__snd_nxt)                                                                           \
	_(tcp_sock__rcv_nxt)                                                                           \
	_(tcp_sock__ecn_flags)                                                                         \
	_(tcp_sock__inet_conn__icsk_ca_priv)                                                           \
	_(tcp_sock__inet_conn__icsk_ack__pending)                                                      \
	_(enum__tcp_ca_event__CA_EVENT_ECN_IS_CE)                                                            \
	_(enum__tcp_ca_event__CA_EVENT_ECN_NO_CE)                                                            \
	_(enum__tcp_ca_state__TCP_CA_Recovery)                                                               \
	_(enum__tcp_ca_state__TCP_CA_Loss)                                                                   \
	_(enum__inet_csk_ack_state_t__ICSK_ACK_TIMER)                                                        \
	_(enum__inet_csk_ack_state_t__ICSK_ACK_NOW)                                                          \
	_(enum__tcp_ca_ack_event_flags__CA_ACK_ECE)

#define DECLARED(name) extern const char name[];
FIELDS(DECLARED)

#define NUMBER(name) ((u32)(u64)name)
#define FIELD(type, sk, name) (*(type *)((char *)(sk) + (u64)name))

/* The kernel's own functions: its helpers by their numbers (linux/bpf.h), one by its name. */
__attribute__((kernel_helper(116))) s64 send_ack(struct sock *sk, u32 received);
extern void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked);

/* Of tcp_sock's ecn_flags (net/tcp.h): ECN was negotiated, and acknowledgements have ECE. */
#define ECN_OK 1
#define DEMAND_CWR 4

#define SHARE_BITS 20 /* `alpha` is in units of 2^-20 */
#define G_SHIFT 4     /* g = 1/16 (4.2) */
#define LEAST_WINDOW 2
#define INFINITE 0x7fffffff /* the threshold before the first cut */
#define MOST_WINDOW (1 << 24)

/* A connection's, in the 104 bytes that TCP keeps for its congestion control. */
struct own {
	u32 alpha;
	u32 window_end; /* the observation window is over when this is acknowledged (3.3) */
	u32 acked_to;
	u32 acked_bytes, marked_bytes; /* in this window */
	u32 received_to;               /* before the segment that is looked at now */
	u32 window;                    /* of packets, after the last acknowledgement */
	u8 ce;                         /* the last segment that arrived had CE (3.2) */
	u8 marks;                      /* ECN was negotiated */
};

/* User space maps it (orchestration/agent/bpf/congestion.py, whose layout this is). */
struct totals {
	u64 connections;
	u64 windows, marked_windows;
	u64 alphas; /* their sum, one a window */
	u64 cuts;   /* windows made smaller because of marks, or of losses */
	u64 losses; /* those of losses */
	u64 astray; /* cuts that the kernel made without asking */
};

_Static_assert(sizeof(struct own) <= 104, "ICSK_CA_PRIV_SIZE");
_Static_assert(sizeof(struct totals) == 56, "Totals in orchestration/agent/bpf/congestion.py");

struct totals totals;

#define COUNT(what, number) __sync_fetch_and_add(&totals.what, number)
#define OWN(sk) (&FIELD(struct own, sk, tcp_sock__inet_conn__icsk_ca_priv))
#define PROGRAM(name) __attribute__((section("struct_ops/" #name), used)) int name(u64 *context)
#define SK ((struct sock *)context[0])

static inline __attribute__((always_inline)) u32 at_least(u32 number, u32 least)
{
	return number < least ? least : number;
}

/* 3.4: cwnd = cwnd (1 - alpha / 2), once a window. Without ECN it is Reno's half. */
static inline __attribute__((always_inline)) u32 cut(const struct own *own, u32 window)
{
	u32 share = own->marks ? own->alpha : 1 << SHARE_BITS;

	return at_least(window - ((u64)window * share >> (SHARE_BITS + 1)), LEAST_WINDOW);
}

/*
 * A kernel may skip a program, as hardened ones do in the context of their first process, and then
 * takes what a register holds for the answer. No threshold is that large: it is put right.
 */
static inline __attribute__((always_inline)) void keep_sane(struct sock *sk, struct own *own)
{
	u32 threshold = FIELD(u32, sk, tcp_sock__snd_ssthresh);
	u32 window = FIELD(u32, sk, tcp_sock__snd_cwnd);

	if (threshold > MOST_WINDOW && threshold != INFINITE) {
		threshold = cut(own, own->window);
		FIELD(u32, sk, tcp_sock__snd_ssthresh) = threshold;
		if (window > threshold) {
			window = threshold;
			FIELD(u32, sk, tcp_sock__snd_cwnd) = window;
		}
		COUNT(astray, 1);
	}
	own->window = window;
}

PROGRAM(init)
{
	struct sock *sk = SK;
	struct own *own = OWN(sk);

	/* "1 is recommended": a first mark halves the window (3.3) */
	own->alpha = 1 << SHARE_BITS;
	own->window_end = FIELD(u32, sk, tcp_sock__snd_nxt);
	own->acked_to = FIELD(u32, sk, tcp_sock__snd_una);
	own->acked_bytes = own->marked_bytes = 0;
	own->received_to = FIELD(u32, sk, tcp_sock__rcv_nxt);
	own->window = FIELD(u32, sk, tcp_sock__snd_cwnd);
	own->ce = 0;
	own->marks = FIELD(u8, sk, tcp_sock__ecn_flags) & ECN_OK;
	COUNT(connections, 1);
	return 0;
}

/* 3.3: alpha = (1 - g) alpha + g M, where M is the share of bytes marked in a window. */
PROGRAM(in_ack_event)
{
	struct sock *sk = SK;
	struct own *own = OWN(sk);
	u32 flags = (u32)context[1];

	keep_sane(sk, own);
	if (!own->marks)
		return 0;
	u32 una = FIELD(u32, sk, tcp_sock__snd_una);
	u32 bytes = una - own->acked_to;
	u32 acked = own->acked_bytes + bytes, marked = own->marked_bytes;
	if (flags & NUMBER(enum__tcp_ca_ack_event_flags__CA_ACK_ECE))
		marked += bytes;
	own->acked_to = una;
	if (acked && (s32)(una - own->window_end) > 0) {
		u32 alpha = own->alpha;

		alpha -= alpha >> G_SHIFT;
		alpha += ((u64)marked << (SHARE_BITS - G_SHIFT)) / acked;
		own->alpha = alpha;
		own->window_end = FIELD(u32, sk, tcp_sock__snd_nxt);
		COUNT(windows, 1);
		COUNT(alphas, alpha);
		if (marked)
			COUNT(marked_windows, 1);
		acked = marked = 0;
	}
	own->acked_bytes = acked;
	own->marked_bytes = marked;
	return 0;
}

PROGRAM(ssthresh)
{
	struct sock *sk = SK;

	COUNT(cuts, 1);
	return cut(OWN(sk), FIELD(u32, sk, tcp_sock__snd_cwnd));
}

/* 3.5: a loss is answered as by other TCPs, by half of the window before this reduction. */
PROGRAM(set_state)
{
	struct sock *sk = SK;
	u8 state = (u8)context[1];

	if (state != NUMBER(enum__tcp_ca_state__TCP_CA_Recovery) &&
	    state != NUMBER(enum__tcp_ca_state__TCP_CA_Loss))
		return 0;
	u32 window = FIELD(u32, sk, tcp_sock__prior_cwnd);
	FIELD(u32, sk, tcp_sock__snd_ssthresh) = at_least(window >> 1, LEAST_WINDOW);
	COUNT(losses, 1);
	return 0;
}

PROGRAM(cong_avoid)
{
	tcp_reno_cong_avoid(SK, (u32)context[1], (u32)context[2]);
	return 0;
}

/* A loss that was none. */
PROGRAM(undo_cwnd)
{
	struct sock *sk = SK;

	return at_least(FIELD(u32, sk, tcp_sock__snd_cwnd), FIELD(u32, sk, tcp_sock__prior_cwnd));
}

static inline __attribute__((always_inline)) void echo(struct sock *sk, u8 ce)
{
	u8 flags = FIELD(u8, sk, tcp_sock__ecn_flags);

	FIELD(u8, sk, tcp_sock__ecn_flags) = ce ? flags | DEMAND_CWR : flags & ~DEMAND_CWR;
}

/*
 * 3.2, of the receiver: an acknowledgement tells of segments with CE, or of ones without it, and
 * never of both. So when CE changes, what is not acknowledged yet is acknowledged as it was, and
 * this segment at once.
 */
PROGRAM(cwnd_event)
{
	struct sock *sk = SK;
	u32 event = (u32)context[1];
	u8 ce = event == NUMBER(enum__tcp_ca_event__CA_EVENT_ECN_IS_CE);

	if (!ce && event != NUMBER(enum__tcp_ca_event__CA_EVENT_ECN_NO_CE))
		return 0;
	struct own *own = OWN(sk);
	if (own->ce != ce) {
		u8 pending = FIELD(u8, sk, tcp_sock__inet_conn__icsk_ack__pending);

		if (pending & NUMBER(enum__inet_csk_ack_state_t__ICSK_ACK_TIMER)) {
			echo(sk, own->ce);
			send_ack(sk, own->received_to);
			pending = FIELD(u8, sk, tcp_sock__inet_conn__icsk_ack__pending);
		}
		pending |= NUMBER(enum__inet_csk_ack_state_t__ICSK_ACK_NOW);
		FIELD(u8, sk, tcp_sock__inet_conn__icsk_ack__pending) = pending;
		own->ce = ce;
	}
	echo(sk, ce);
	own->received_to = FIELD(u32, sk, tcp_sock__rcv_nxt);
	return 0;
}

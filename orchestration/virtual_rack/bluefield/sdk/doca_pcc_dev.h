/* Stands in for the DOCA SDK's header in tests: what its guide documents, and no more.
 *
 * NVIDIA, "DOCA PCC" (DOCA 3.1, docs.nvidia.com/doca), and how doca-samples' applications/pcc uses
 * it. An event has plain fields here, which the accessors of doca_pcc_dev_event.h return.
 */
#ifndef DOCA_STAND_IN_DEV_H
#define DOCA_STAND_IN_DEV_H

#include <stddef.h>
#include <stdint.h>

enum {
	DOCA_PCC_DEV_EVNT_ROCE_CNP = 2,
	DOCA_PCC_DEV_EVNT_ROCE_TX = 3,
	DOCA_PCC_DEV_EVNT_ROCE_ACK = 4,
	DOCA_PCC_DEV_EVNT_ROCE_NACK = 5,
	DOCA_PCC_DEV_EVNT_RTT = 6,
	DOCA_PCC_DEV_EVNT_ROCE_TX_FOR_ACK_NACK = 31,
};

enum {
	DOCA_PCC_DEV_NACK_EVNT_NULL = 0,
	DOCA_PCC_DEV_NACK_EVNT_RNR = 1,
	DOCA_PCC_DEV_NACK_EVNT_OOS = 2,
	DOCA_PCC_DEV_NACK_EVNT_DUP_READ = 3,
};

#define DOCA_PCC_DEV_ACK_NACK_TX_EVENT_DISABLED_SUPPORTED (0)
#define DOCA_PCC_DEV_TX_FLAG_RTT_REQ_SENT (1 << 2)
#define DOCA_PCC_DEV_LOG_MAX_RATE (20)
#define DOCA_PCC_DEV_MAX_NUM_PORTS (4)

typedef enum { DOCA_PCC_DEV_STATUS_OK, DOCA_PCC_DEV_STATUS_FAIL } doca_pcc_dev_error_t;
typedef struct { uint32_t words[12]; } doca_pcc_dev_algo_ctxt_t;
typedef struct { uint32_t algo_slot; } doca_pcc_dev_attr_t;
typedef struct { uint32_t rate, rtt_req, probe_type_slot; } doca_pcc_dev_results_t;
typedef struct { uint32_t ev_type, ev_subtype, port_num, flags; } doca_pcc_dev_event_general_attr_t;
typedef struct {
	doca_pcc_dev_event_general_attr_t attr;
	uint32_t timestamp, rtt_req_send_timestamp;
} doca_pcc_dev_event_t;

struct doca_pcc_dev_algo_meta_data {
	uint32_t algo_id, algo_major_version, algo_minor_version, algo_desc_size;
	uint64_t algo_desc_addr;
};

#endif

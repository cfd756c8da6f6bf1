#ifndef DOCA_STAND_IN_EVENT_H
#define DOCA_STAND_IN_EVENT_H

#include "doca_pcc_dev.h"

static inline doca_pcc_dev_event_general_attr_t doca_pcc_dev_get_ev_attr(doca_pcc_dev_event_t *event)
{
	return event->attr;
}

static inline uint32_t doca_pcc_dev_get_timestamp(doca_pcc_dev_event_t *event)
{
	return event->timestamp;
}

static inline uint32_t doca_pcc_dev_get_rtt_req_send_timestamp(doca_pcc_dev_event_t *event)
{
	return event->rtt_req_send_timestamp;
}

#endif

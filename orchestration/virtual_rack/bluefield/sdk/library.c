/* The device library's side, for tests: it stores what an algorithm registers. */
#include "doca_pcc_dev_algo_access.h"

#define MOST 16

uint32_t params[MOST], most[MOST], counters[MOST], numbers[2], slots_enabled, internal_events;
struct doca_pcc_dev_algo_meta_data about;

void doca_pcc_dev_algo_init_metadata(uint32_t algo_idx,
				     const struct doca_pcc_dev_algo_meta_data *algo_def,
				     uint32_t param_num, uint32_t counter_num)
{
	(void)algo_idx;
	about = *algo_def;
	numbers[0] = param_num;
	numbers[1] = counter_num;
}

void doca_pcc_dev_algo_init_param(uint32_t algo_idx, uint32_t param_id, uint32_t default_value,
				  uint32_t max_value, uint32_t min_value, uint32_t permission,
				  uint32_t desc_size, uint64_t desc_addr)
{
	(void)algo_idx, (void)min_value, (void)permission, (void)desc_size, (void)desc_addr;
	params[param_id] = default_value;
	most[param_id] = max_value;
}

void doca_pcc_dev_algo_init_counter(uint32_t algo_idx, uint32_t counter_id, uint32_t max_value,
				    uint32_t permission, uint32_t desc_size, uint64_t desc_addr)
{
	(void)algo_idx, (void)max_value, (void)permission, (void)desc_size, (void)desc_addr;
	counters[counter_id] = 0;
}

void doca_pcc_dev_init_algo_slot(uint32_t port_num, uint32_t algo_slot, uint32_t algo_idx,
				 uint32_t algo_en)
{
	(void)port_num, (void)algo_slot, (void)algo_idx;
	slots_enabled += algo_en;
}

uint32_t doca_pcc_dev_get_algo_index(uint32_t port_num, uint32_t algo_slot)
{
	(void)port_num, (void)algo_slot;
	return 0;
}

uint32_t *doca_pcc_dev_get_algo_params(uint32_t port_num, uint32_t algo_slot)
{
	(void)port_num, (void)algo_slot;
	return params;
}

uint32_t *doca_pcc_dev_get_counters(uint32_t port_num, uint32_t algo_slot)
{
	(void)port_num, (void)algo_slot;
	return counters;
}

void doca_pcc_dev_default_internal_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt,
					doca_pcc_dev_event_t *event,
					const doca_pcc_dev_attr_t *attr,
					doca_pcc_dev_results_t *results)
{
	(void)algo_ctxt, (void)event, (void)attr, (void)results;
	internal_events++;
}

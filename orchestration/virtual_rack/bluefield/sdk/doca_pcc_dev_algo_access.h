#ifndef DOCA_STAND_IN_ALGO_ACCESS_H
#define DOCA_STAND_IN_ALGO_ACCESS_H

#include "doca_pcc_dev.h"

void doca_pcc_dev_algo_init_metadata(uint32_t algo_idx,
				     const struct doca_pcc_dev_algo_meta_data *algo_def,
				     uint32_t param_num, uint32_t counter_num);
void doca_pcc_dev_algo_init_param(uint32_t algo_idx, uint32_t param_id, uint32_t default_value,
				  uint32_t max_value, uint32_t min_value, uint32_t permission,
				  uint32_t desc_size, uint64_t desc_addr);
void doca_pcc_dev_algo_init_counter(uint32_t algo_idx, uint32_t counter_id, uint32_t max_value,
				    uint32_t permission, uint32_t desc_size, uint64_t desc_addr);
void doca_pcc_dev_init_algo_slot(uint32_t port_num, uint32_t algo_slot, uint32_t algo_idx,
				 uint32_t algo_en);
uint32_t doca_pcc_dev_get_algo_index(uint32_t port_num, uint32_t algo_slot);
uint32_t *doca_pcc_dev_get_algo_params(uint32_t port_num, uint32_t algo_slot);
uint32_t *doca_pcc_dev_get_counters(uint32_t port_num, uint32_t algo_slot);
void doca_pcc_dev_default_internal_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt,
					doca_pcc_dev_event_t *event,
					const doca_pcc_dev_attr_t *attr,
					doca_pcc_dev_results_t *results);

#endif

// SPDX-License-Identifier: GPL-2.0-only
/* What all wires have in common: what is known of the packet that is handed over, and who forwards. */
#include "wire.h"

struct cl_known cl_known;
struct cl_forwarding cl_forwarding;

int cl_read_options(struct Qdisc *sch, struct nlattr *opt, void *options, u32 bytes,
		    struct net_device **peer, struct netlink_ext_ack *extack)
{
	struct net_device *dev = qdisc_dev(sch);
	struct nla_policy policy[] = { [CL_OPTIONS] = NLA_POLICY_EXACT_LEN(bytes) };
	struct nlattr *found[CL_OPTIONS + 1];
	int error;

	if (!opt)
		return -EINVAL;
	error = nla_parse_nested(found, CL_OPTIONS, opt, policy, extack);
	if (error)
		return error;
	if (NL_REQ_ATTR_CHECK(extack, opt, found, CL_OPTIONS))
		return -EINVAL;
	memcpy(options, nla_data(found[CL_OPTIONS]), bytes);
	if (dev->netdev_ops->ndo_get_peer_dev)
		*peer = dev->netdev_ops->ndo_get_peer_dev(dev);
	if (*peer)
		return 0;
	NL_SET_ERR_MSG(extack, "a port or a NIC must be one end of a veth pair");
	return -EOPNOTSUPP;
}

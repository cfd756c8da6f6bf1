// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC with the trees of model 922386e98fe8, written by `closloop compile`.
 *
 * 10 trees, 160 leaves; an action is at most 7.63e-05 from the model's.
 * Parameters: target 64 and beta 1500 in thousandths, as it was trained; the base RTT in ns.
 */
#define RLCC_HISTORY 4
#define RLCC_LEAST_ACTION 52429
#define RLCC_MOST_ACTION 78643
#include "policy_rlcc.h"

#ifndef __BPF__
static const s32 rlcc_leaves_0[] = {
	59254, 71653, 65926, 72275, 59180, 65779, 65926, 67752,
	65926, 65926, 65926, 72252, 59178, 63258, 65926, 67491,
};
static const s32 rlcc_leaves_1[] = {
	-2623, 0, -5606, 0, 1723, 2497, -230, 520,
	2370, 0, -5158, 0, 138, 996, -1427, 159,
};
static const s32 rlcc_leaves_2[] = {
	-444, 862, 0, 0, -2979, 316, 0, 0,
	128, 682, -5364, -4381, -2034, 572, 0, -4492,
};
static const s32 rlcc_leaves_3[] = {
	-4, 3168, 1825, 4358, -100, 0, 865, 3134,
	-614, 4000, 535, 2476, -1752, 0, -32, 3249,
};
static const s32 rlcc_leaves_4[] = {
	-1684, 2041, -1858, 24, 0, 1433, 0, 785,
	-9639, 1021, 869, -588, 0, 812, 0, 497,
};
static const s32 rlcc_leaves_5[] = {
	-357, -5061, 2007, 0, -2621, 0, 232, 1592,
	-638, -2666, 1232, -1711, -2545, -3498, -104, -2599,
};
static const s32 rlcc_leaves_6[] = {
	775, -1096, 1025, 540, 2709, 1815, 2253, 1669,
	131, 564, -461, 132, -413, 203, -893, 98,
};
static const s32 rlcc_leaves_7[] = {
	-454, 572, -1342, -83, 18, 268, -4642, -422,
	-311, 1042, -1189, 189, -1912, -685, -2754, -2044,
};
static const s32 rlcc_leaves_8[] = {
	193, -56, 338, 305, 38, -618, 809, -46,
	-112, -457, 278, 212, 39, -1611, 807, 93,
};
static const s32 rlcc_leaves_9[] = {
	-674, 0, -1640, 0, 958, 732, -2091, -9030,
	702, 0, -115, 0, -16, 1253, -938, 1308,
};

CL_INLINE s32 rlcc_infer(const s32 *w)
{
	s32 sum = 0;

	sum += rlcc_leaves_0[(w[0] > -50429) | (w[0] > 2874) << 1 | (w[6] > -42670) << 2 | (w[4] > 3862) << 3];
	sum += rlcc_leaves_1[(w[0] > -150) | (w[3] > 64085) << 1 | (w[0] > -10445) << 2 | (w[1] > 64026) << 3];
	sum += rlcc_leaves_2[(w[0] > 1121) | (w[5] > 78641) << 1 | (w[2] > 1800) << 2 | (w[5] > 65801) << 3];
	sum += rlcc_leaves_3[(w[1] > 78629) | (w[0] > -805) << 1 | (w[2] > -448) << 2 | (w[3] > 61660) << 3];
	sum += rlcc_leaves_4[(w[0] > -39449) | (w[3] > 58935) << 1 | (w[0] > 3563) << 2 | (w[1] > 67366) << 3];
	sum += rlcc_leaves_5[(w[5] > 78637) | (w[0] > -3407) << 1 | (w[2] > -2974) << 2 | (w[3] > 65706) << 3];
	sum += rlcc_leaves_6[(w[0] > 369) | (w[2] > 90) << 1 | (w[3] > 66983) << 2 | (w[6] > -49847) << 3];
	sum += rlcc_leaves_7[(w[0] > -2137) | (w[2] > -871) << 1 | (w[3] > 71478) << 2 | (w[5] > 67149) << 3];
	sum += rlcc_leaves_8[(w[1] > 65657) | (w[0] > 1705) << 1 | (w[7] > 68756) << 2 | (w[3] > 67454) << 3];
	sum += rlcc_leaves_9[(w[1] > 78607) | (w[3] > 70959) << 1 | (w[1] > 61407) << 2 | (w[0] > -14841) << 3];
	return sum;
}
#else
CL_INLINE s32 rlcc_infer(const s32 *window)
{
	/* read anew each time: the verifier then forgets what it knows of a word, and the
	 * ways through the trees meet again behind each of them
	 */
	const volatile s32 *w = window;
	s32 sum = 0;

	if (w[4] > 3862) {
		if (w[6] > -42670) {
			if (w[0] > 2874) {
				if (w[0] > -50429) {
					sum += 67491;
				} else {
					sum += 65926;
				}
			} else {
				if (w[0] > -50429) {
					sum += 63258;
				} else {
					sum += 59178;
				}
			}
		} else {
			if (w[0] > 2874) {
				if (w[0] > -50429) {
					sum += 72252;
				} else {
					sum += 65926;
				}
			} else {
				if (w[0] > -50429) {
					sum += 65926;
				} else {
					sum += 65926;
				}
			}
		}
	} else {
		if (w[6] > -42670) {
			if (w[0] > 2874) {
				if (w[0] > -50429) {
					sum += 67752;
				} else {
					sum += 65926;
				}
			} else {
				if (w[0] > -50429) {
					sum += 65779;
				} else {
					sum += 59180;
				}
			}
		} else {
			if (w[0] > 2874) {
				if (w[0] > -50429) {
					sum += 72275;
				} else {
					sum += 65926;
				}
			} else {
				if (w[0] > -50429) {
					sum += 71653;
				} else {
					sum += 59254;
				}
			}
		}
	}
	if (w[1] > 64026) {
		if (w[0] > -10445) {
			if (w[3] > 64085) {
				if (w[0] > -150) {
					sum += 159;
				} else {
					sum += -1427;
				}
			} else {
				if (w[0] > -150) {
					sum += 996;
				} else {
					sum += 138;
				}
			}
		} else {
			if (w[3] > 64085) {
				if (w[0] > -150) {
					sum += 0;
				} else {
					sum += -5158;
				}
			} else {
				if (w[0] > -150) {
					sum += 0;
				} else {
					sum += 2370;
				}
			}
		}
	} else {
		if (w[0] > -10445) {
			if (w[3] > 64085) {
				if (w[0] > -150) {
					sum += 520;
				} else {
					sum += -230;
				}
			} else {
				if (w[0] > -150) {
					sum += 2497;
				} else {
					sum += 1723;
				}
			}
		} else {
			if (w[3] > 64085) {
				if (w[0] > -150) {
					sum += 0;
				} else {
					sum += -5606;
				}
			} else {
				if (w[0] > -150) {
					sum += 0;
				} else {
					sum += -2623;
				}
			}
		}
	}
	if (w[5] > 65801) {
		if (w[2] > 1800) {
			if (w[5] > 78641) {
				if (w[0] > 1121) {
					sum += -4492;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 1121) {
					sum += 572;
				} else {
					sum += -2034;
				}
			}
		} else {
			if (w[5] > 78641) {
				if (w[0] > 1121) {
					sum += -4381;
				} else {
					sum += -5364;
				}
			} else {
				if (w[0] > 1121) {
					sum += 682;
				} else {
					sum += 128;
				}
			}
		}
	} else {
		if (w[2] > 1800) {
			if (w[5] > 78641) {
				if (w[0] > 1121) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 1121) {
					sum += 316;
				} else {
					sum += -2979;
				}
			}
		} else {
			if (w[5] > 78641) {
				if (w[0] > 1121) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 1121) {
					sum += 862;
				} else {
					sum += -444;
				}
			}
		}
	}
	if (w[3] > 61660) {
		if (w[2] > -448) {
			if (w[0] > -805) {
				if (w[1] > 78629) {
					sum += 3249;
				} else {
					sum += -32;
				}
			} else {
				if (w[1] > 78629) {
					sum += 0;
				} else {
					sum += -1752;
				}
			}
		} else {
			if (w[0] > -805) {
				if (w[1] > 78629) {
					sum += 2476;
				} else {
					sum += 535;
				}
			} else {
				if (w[1] > 78629) {
					sum += 4000;
				} else {
					sum += -614;
				}
			}
		}
	} else {
		if (w[2] > -448) {
			if (w[0] > -805) {
				if (w[1] > 78629) {
					sum += 3134;
				} else {
					sum += 865;
				}
			} else {
				if (w[1] > 78629) {
					sum += 0;
				} else {
					sum += -100;
				}
			}
		} else {
			if (w[0] > -805) {
				if (w[1] > 78629) {
					sum += 4358;
				} else {
					sum += 1825;
				}
			} else {
				if (w[1] > 78629) {
					sum += 3168;
				} else {
					sum += -4;
				}
			}
		}
	}
	if (w[1] > 67366) {
		if (w[0] > 3563) {
			if (w[3] > 58935) {
				if (w[0] > -39449) {
					sum += 497;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -39449) {
					sum += 812;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[3] > 58935) {
				if (w[0] > -39449) {
					sum += -588;
				} else {
					sum += 869;
				}
			} else {
				if (w[0] > -39449) {
					sum += 1021;
				} else {
					sum += -9639;
				}
			}
		}
	} else {
		if (w[0] > 3563) {
			if (w[3] > 58935) {
				if (w[0] > -39449) {
					sum += 785;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -39449) {
					sum += 1433;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[3] > 58935) {
				if (w[0] > -39449) {
					sum += 24;
				} else {
					sum += -1858;
				}
			} else {
				if (w[0] > -39449) {
					sum += 2041;
				} else {
					sum += -1684;
				}
			}
		}
	}
	if (w[3] > 65706) {
		if (w[2] > -2974) {
			if (w[0] > -3407) {
				if (w[5] > 78637) {
					sum += -2599;
				} else {
					sum += -104;
				}
			} else {
				if (w[5] > 78637) {
					sum += -3498;
				} else {
					sum += -2545;
				}
			}
		} else {
			if (w[0] > -3407) {
				if (w[5] > 78637) {
					sum += -1711;
				} else {
					sum += 1232;
				}
			} else {
				if (w[5] > 78637) {
					sum += -2666;
				} else {
					sum += -638;
				}
			}
		}
	} else {
		if (w[2] > -2974) {
			if (w[0] > -3407) {
				if (w[5] > 78637) {
					sum += 1592;
				} else {
					sum += 232;
				}
			} else {
				if (w[5] > 78637) {
					sum += 0;
				} else {
					sum += -2621;
				}
			}
		} else {
			if (w[0] > -3407) {
				if (w[5] > 78637) {
					sum += 0;
				} else {
					sum += 2007;
				}
			} else {
				if (w[5] > 78637) {
					sum += -5061;
				} else {
					sum += -357;
				}
			}
		}
	}
	if (w[6] > -49847) {
		if (w[3] > 66983) {
			if (w[2] > 90) {
				if (w[0] > 369) {
					sum += 98;
				} else {
					sum += -893;
				}
			} else {
				if (w[0] > 369) {
					sum += 203;
				} else {
					sum += -413;
				}
			}
		} else {
			if (w[2] > 90) {
				if (w[0] > 369) {
					sum += 132;
				} else {
					sum += -461;
				}
			} else {
				if (w[0] > 369) {
					sum += 564;
				} else {
					sum += 131;
				}
			}
		}
	} else {
		if (w[3] > 66983) {
			if (w[2] > 90) {
				if (w[0] > 369) {
					sum += 1669;
				} else {
					sum += 2253;
				}
			} else {
				if (w[0] > 369) {
					sum += 1815;
				} else {
					sum += 2709;
				}
			}
		} else {
			if (w[2] > 90) {
				if (w[0] > 369) {
					sum += 540;
				} else {
					sum += 1025;
				}
			} else {
				if (w[0] > 369) {
					sum += -1096;
				} else {
					sum += 775;
				}
			}
		}
	}
	if (w[5] > 67149) {
		if (w[3] > 71478) {
			if (w[2] > -871) {
				if (w[0] > -2137) {
					sum += -2044;
				} else {
					sum += -2754;
				}
			} else {
				if (w[0] > -2137) {
					sum += -685;
				} else {
					sum += -1912;
				}
			}
		} else {
			if (w[2] > -871) {
				if (w[0] > -2137) {
					sum += 189;
				} else {
					sum += -1189;
				}
			} else {
				if (w[0] > -2137) {
					sum += 1042;
				} else {
					sum += -311;
				}
			}
		}
	} else {
		if (w[3] > 71478) {
			if (w[2] > -871) {
				if (w[0] > -2137) {
					sum += -422;
				} else {
					sum += -4642;
				}
			} else {
				if (w[0] > -2137) {
					sum += 268;
				} else {
					sum += 18;
				}
			}
		} else {
			if (w[2] > -871) {
				if (w[0] > -2137) {
					sum += -83;
				} else {
					sum += -1342;
				}
			} else {
				if (w[0] > -2137) {
					sum += 572;
				} else {
					sum += -454;
				}
			}
		}
	}
	if (w[3] > 67454) {
		if (w[7] > 68756) {
			if (w[0] > 1705) {
				if (w[1] > 65657) {
					sum += 93;
				} else {
					sum += 807;
				}
			} else {
				if (w[1] > 65657) {
					sum += -1611;
				} else {
					sum += 39;
				}
			}
		} else {
			if (w[0] > 1705) {
				if (w[1] > 65657) {
					sum += 212;
				} else {
					sum += 278;
				}
			} else {
				if (w[1] > 65657) {
					sum += -457;
				} else {
					sum += -112;
				}
			}
		}
	} else {
		if (w[7] > 68756) {
			if (w[0] > 1705) {
				if (w[1] > 65657) {
					sum += -46;
				} else {
					sum += 809;
				}
			} else {
				if (w[1] > 65657) {
					sum += -618;
				} else {
					sum += 38;
				}
			}
		} else {
			if (w[0] > 1705) {
				if (w[1] > 65657) {
					sum += 305;
				} else {
					sum += 338;
				}
			} else {
				if (w[1] > 65657) {
					sum += -56;
				} else {
					sum += 193;
				}
			}
		}
	}
	if (w[0] > -14841) {
		if (w[1] > 61407) {
			if (w[3] > 70959) {
				if (w[1] > 78607) {
					sum += 1308;
				} else {
					sum += -938;
				}
			} else {
				if (w[1] > 78607) {
					sum += 1253;
				} else {
					sum += -16;
				}
			}
		} else {
			if (w[3] > 70959) {
				if (w[1] > 78607) {
					sum += 0;
				} else {
					sum += -115;
				}
			} else {
				if (w[1] > 78607) {
					sum += 0;
				} else {
					sum += 702;
				}
			}
		}
	} else {
		if (w[1] > 61407) {
			if (w[3] > 70959) {
				if (w[1] > 78607) {
					sum += -9030;
				} else {
					sum += -2091;
				}
			} else {
				if (w[1] > 78607) {
					sum += 732;
				} else {
					sum += 958;
				}
			}
		} else {
			if (w[3] > 70959) {
				if (w[1] > 78607) {
					sum += 0;
				} else {
					sum += -1640;
				}
			} else {
				if (w[1] > 78607) {
					sum += 0;
				} else {
					sum += -674;
				}
			}
		}
	}
	return sum;
}
#endif

CL_POLICY(rlcc, RLCC_PARAMETERS, 0);

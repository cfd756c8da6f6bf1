// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC with the trees of model 91f16a8f5e66, written by `closloop compile`.
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
	63161, 66092, 60880, 66092, 66164, 69622, 63701, 67084,
	59622, 66092, 59531, 66092, 62341, 69533, 61473, 65681,
};
static const s32 rlcc_leaves_1[] = {
	-838, 0, -1974, 0, -4626, 0, -3416, 0,
	962, 2769, -521, 1208, -560, 2294, -2390, 726,
};
static const s32 rlcc_leaves_2[] = {
	-4921, 0, 0, 0, 1295, 2338, 0, 0,
	-4151, 0, -2996, 0, -237, 1195, -1181, 519,
};
static const s32 rlcc_leaves_3[] = {
	-72, 1159, -4605, 0, -1152, 1164, -2288, 1147,
	-381, 267, -950, -72, -2167, 571, -2193, -878,
};
static const s32 rlcc_leaves_4[] = {
	793, 0, 0, 0, 5721, 1376, 6417, 1419,
	-2293, 0, -1524, 0, 88, 432, -599, 426,
};
static const s32 rlcc_leaves_5[] = {
	184, 654, -746, 166, -363, 1348, -348, -116,
	0, -310, 0, 192, 0, -155, 0, -904,
};
static const s32 rlcc_leaves_6[] = {
	-2224, 5493, -2286, -2294, -1457, 0, -529, -1066,
	0, 4337, 0, 1119, 0, 0, 0, -20,
};
static const s32 rlcc_leaves_7[] = {
	489, -523, 583, 367, -380, -1063, 165, -264,
	0, 0, -856, -450, 0, 0, 166, 148,
};
static const s32 rlcc_leaves_8[] = {
	52, 41, 658, 973, -380, -682, 389, -359,
	0, 0, -387, 645, 0, 0, 61, -609,
};
static const s32 rlcc_leaves_9[] = {
	-1458, -1305, 3771, 1699, -1343, -320, -547, -434,
	0, 0, 1542, 680, 0, 0, 453, -8,
};

CL_INLINE s32 rlcc_infer(const s32 *w)
{
	s32 sum = 0;

	sum += rlcc_leaves_0[(w[0] > 1001) | (w[6] > 372) << 1 | (w[0] > -5551) << 2 | (w[3] > 71374) << 3];
	sum += rlcc_leaves_1[(w[0] > 2173) | (w[6] > -982) << 1 | (w[4] > 2911) << 2 | (w[0] > -2792) << 3];
	sum += rlcc_leaves_2[(w[0] > 3340) | (w[6] > 2720) << 1 | (w[0] > -48674) << 2 | (w[6] > -4222) << 3];
	sum += rlcc_leaves_3[(w[0] > -644) | (w[5] > 69982) << 1 | (w[1] > 69489) << 2 | (w[6] > -3133) << 3];
	sum += rlcc_leaves_4[(w[0] > 3790) | (w[3] > 68645) << 1 | (w[0] > -10255) << 2 | (w[6] > -40073) << 3];
	sum += rlcc_leaves_5[(w[0] > -1430) | (w[3] > 61691) << 1 | (w[5] > 74495) << 2 | (w[0] > 1005) << 3];
	sum += rlcc_leaves_6[(w[0] > -39642) | (w[4] > -35238) << 1 | (w[6] > -7019) << 2 | (w[0] > -12608) << 3];
	sum += rlcc_leaves_7[(w[5] > 63398) | (w[0] > -3659) << 1 | (w[1] > 60824) << 2 | (w[0] > 2725) << 3];
	sum += rlcc_leaves_8[(w[3] > 75952) | (w[0] > -117) << 1 | (w[1] > 63851) << 2 | (w[0] > 1001) << 3];
	sum += rlcc_leaves_9[(w[7] > 55851) | (w[0] > -44122) << 1 | (w[6] > -44858) << 2 | (w[0] > -8390) << 3];
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

	if (w[3] > 71374) {
		if (w[0] > -5551) {
			if (w[6] > 372) {
				if (w[0] > 1001) {
					sum += 65681;
				} else {
					sum += 61473;
				}
			} else {
				if (w[0] > 1001) {
					sum += 69533;
				} else {
					sum += 62341;
				}
			}
		} else {
			if (w[6] > 372) {
				if (w[0] > 1001) {
					sum += 66092;
				} else {
					sum += 59531;
				}
			} else {
				if (w[0] > 1001) {
					sum += 66092;
				} else {
					sum += 59622;
				}
			}
		}
	} else {
		if (w[0] > -5551) {
			if (w[6] > 372) {
				if (w[0] > 1001) {
					sum += 67084;
				} else {
					sum += 63701;
				}
			} else {
				if (w[0] > 1001) {
					sum += 69622;
				} else {
					sum += 66164;
				}
			}
		} else {
			if (w[6] > 372) {
				if (w[0] > 1001) {
					sum += 66092;
				} else {
					sum += 60880;
				}
			} else {
				if (w[0] > 1001) {
					sum += 66092;
				} else {
					sum += 63161;
				}
			}
		}
	}
	if (w[0] > -2792) {
		if (w[4] > 2911) {
			if (w[6] > -982) {
				if (w[0] > 2173) {
					sum += 726;
				} else {
					sum += -2390;
				}
			} else {
				if (w[0] > 2173) {
					sum += 2294;
				} else {
					sum += -560;
				}
			}
		} else {
			if (w[6] > -982) {
				if (w[0] > 2173) {
					sum += 1208;
				} else {
					sum += -521;
				}
			} else {
				if (w[0] > 2173) {
					sum += 2769;
				} else {
					sum += 962;
				}
			}
		}
	} else {
		if (w[4] > 2911) {
			if (w[6] > -982) {
				if (w[0] > 2173) {
					sum += 0;
				} else {
					sum += -3416;
				}
			} else {
				if (w[0] > 2173) {
					sum += 0;
				} else {
					sum += -4626;
				}
			}
		} else {
			if (w[6] > -982) {
				if (w[0] > 2173) {
					sum += 0;
				} else {
					sum += -1974;
				}
			} else {
				if (w[0] > 2173) {
					sum += 0;
				} else {
					sum += -838;
				}
			}
		}
	}
	if (w[6] > -4222) {
		if (w[0] > -48674) {
			if (w[6] > 2720) {
				if (w[0] > 3340) {
					sum += 519;
				} else {
					sum += -1181;
				}
			} else {
				if (w[0] > 3340) {
					sum += 1195;
				} else {
					sum += -237;
				}
			}
		} else {
			if (w[6] > 2720) {
				if (w[0] > 3340) {
					sum += 0;
				} else {
					sum += -2996;
				}
			} else {
				if (w[0] > 3340) {
					sum += 0;
				} else {
					sum += -4151;
				}
			}
		}
	} else {
		if (w[0] > -48674) {
			if (w[6] > 2720) {
				if (w[0] > 3340) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 3340) {
					sum += 2338;
				} else {
					sum += 1295;
				}
			}
		} else {
			if (w[6] > 2720) {
				if (w[0] > 3340) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 3340) {
					sum += 0;
				} else {
					sum += -4921;
				}
			}
		}
	}
	if (w[6] > -3133) {
		if (w[1] > 69489) {
			if (w[5] > 69982) {
				if (w[0] > -644) {
					sum += -878;
				} else {
					sum += -2193;
				}
			} else {
				if (w[0] > -644) {
					sum += 571;
				} else {
					sum += -2167;
				}
			}
		} else {
			if (w[5] > 69982) {
				if (w[0] > -644) {
					sum += -72;
				} else {
					sum += -950;
				}
			} else {
				if (w[0] > -644) {
					sum += 267;
				} else {
					sum += -381;
				}
			}
		}
	} else {
		if (w[1] > 69489) {
			if (w[5] > 69982) {
				if (w[0] > -644) {
					sum += 1147;
				} else {
					sum += -2288;
				}
			} else {
				if (w[0] > -644) {
					sum += 1164;
				} else {
					sum += -1152;
				}
			}
		} else {
			if (w[5] > 69982) {
				if (w[0] > -644) {
					sum += 0;
				} else {
					sum += -4605;
				}
			} else {
				if (w[0] > -644) {
					sum += 1159;
				} else {
					sum += -72;
				}
			}
		}
	}
	if (w[6] > -40073) {
		if (w[0] > -10255) {
			if (w[3] > 68645) {
				if (w[0] > 3790) {
					sum += 426;
				} else {
					sum += -599;
				}
			} else {
				if (w[0] > 3790) {
					sum += 432;
				} else {
					sum += 88;
				}
			}
		} else {
			if (w[3] > 68645) {
				if (w[0] > 3790) {
					sum += 0;
				} else {
					sum += -1524;
				}
			} else {
				if (w[0] > 3790) {
					sum += 0;
				} else {
					sum += -2293;
				}
			}
		}
	} else {
		if (w[0] > -10255) {
			if (w[3] > 68645) {
				if (w[0] > 3790) {
					sum += 1419;
				} else {
					sum += 6417;
				}
			} else {
				if (w[0] > 3790) {
					sum += 1376;
				} else {
					sum += 5721;
				}
			}
		} else {
			if (w[3] > 68645) {
				if (w[0] > 3790) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 3790) {
					sum += 0;
				} else {
					sum += 793;
				}
			}
		}
	}
	if (w[0] > 1005) {
		if (w[5] > 74495) {
			if (w[3] > 61691) {
				if (w[0] > -1430) {
					sum += -904;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -1430) {
					sum += -155;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[3] > 61691) {
				if (w[0] > -1430) {
					sum += 192;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -1430) {
					sum += -310;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[5] > 74495) {
			if (w[3] > 61691) {
				if (w[0] > -1430) {
					sum += -116;
				} else {
					sum += -348;
				}
			} else {
				if (w[0] > -1430) {
					sum += 1348;
				} else {
					sum += -363;
				}
			}
		} else {
			if (w[3] > 61691) {
				if (w[0] > -1430) {
					sum += 166;
				} else {
					sum += -746;
				}
			} else {
				if (w[0] > -1430) {
					sum += 654;
				} else {
					sum += 184;
				}
			}
		}
	}
	if (w[0] > -12608) {
		if (w[6] > -7019) {
			if (w[4] > -35238) {
				if (w[0] > -39642) {
					sum += -20;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -39642) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[4] > -35238) {
				if (w[0] > -39642) {
					sum += 1119;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -39642) {
					sum += 4337;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[6] > -7019) {
			if (w[4] > -35238) {
				if (w[0] > -39642) {
					sum += -1066;
				} else {
					sum += -529;
				}
			} else {
				if (w[0] > -39642) {
					sum += 0;
				} else {
					sum += -1457;
				}
			}
		} else {
			if (w[4] > -35238) {
				if (w[0] > -39642) {
					sum += -2294;
				} else {
					sum += -2286;
				}
			} else {
				if (w[0] > -39642) {
					sum += 5493;
				} else {
					sum += -2224;
				}
			}
		}
	}
	if (w[0] > 2725) {
		if (w[1] > 60824) {
			if (w[0] > -3659) {
				if (w[5] > 63398) {
					sum += 148;
				} else {
					sum += 166;
				}
			} else {
				if (w[5] > 63398) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[0] > -3659) {
				if (w[5] > 63398) {
					sum += -450;
				} else {
					sum += -856;
				}
			} else {
				if (w[5] > 63398) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[1] > 60824) {
			if (w[0] > -3659) {
				if (w[5] > 63398) {
					sum += -264;
				} else {
					sum += 165;
				}
			} else {
				if (w[5] > 63398) {
					sum += -1063;
				} else {
					sum += -380;
				}
			}
		} else {
			if (w[0] > -3659) {
				if (w[5] > 63398) {
					sum += 367;
				} else {
					sum += 583;
				}
			} else {
				if (w[5] > 63398) {
					sum += -523;
				} else {
					sum += 489;
				}
			}
		}
	}
	if (w[0] > 1001) {
		if (w[1] > 63851) {
			if (w[0] > -117) {
				if (w[3] > 75952) {
					sum += -609;
				} else {
					sum += 61;
				}
			} else {
				if (w[3] > 75952) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[0] > -117) {
				if (w[3] > 75952) {
					sum += 645;
				} else {
					sum += -387;
				}
			} else {
				if (w[3] > 75952) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[1] > 63851) {
			if (w[0] > -117) {
				if (w[3] > 75952) {
					sum += -359;
				} else {
					sum += 389;
				}
			} else {
				if (w[3] > 75952) {
					sum += -682;
				} else {
					sum += -380;
				}
			}
		} else {
			if (w[0] > -117) {
				if (w[3] > 75952) {
					sum += 973;
				} else {
					sum += 658;
				}
			} else {
				if (w[3] > 75952) {
					sum += 41;
				} else {
					sum += 52;
				}
			}
		}
	}
	if (w[0] > -8390) {
		if (w[6] > -44858) {
			if (w[0] > -44122) {
				if (w[7] > 55851) {
					sum += -8;
				} else {
					sum += 453;
				}
			} else {
				if (w[7] > 55851) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[0] > -44122) {
				if (w[7] > 55851) {
					sum += 680;
				} else {
					sum += 1542;
				}
			} else {
				if (w[7] > 55851) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[6] > -44858) {
			if (w[0] > -44122) {
				if (w[7] > 55851) {
					sum += -434;
				} else {
					sum += -547;
				}
			} else {
				if (w[7] > 55851) {
					sum += -320;
				} else {
					sum += -1343;
				}
			}
		} else {
			if (w[0] > -44122) {
				if (w[7] > 55851) {
					sum += 1699;
				} else {
					sum += 3771;
				}
			} else {
				if (w[7] > 55851) {
					sum += -1305;
				} else {
					sum += -1458;
				}
			}
		}
	}
	return sum;
}
#endif

CL_POLICY(rlcc, RLCC_PARAMETERS, 0);

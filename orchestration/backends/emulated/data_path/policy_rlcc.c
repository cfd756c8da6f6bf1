// SPDX-License-Identifier: GPL-2.0-only
/* RL-CC with the trees of model 4fa11d4dd25d, written by `closloop compile`.
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
	59294, 66012, 71674, 70241, 59221, 66012, 65846, 67776,
	66012, 66012, 66012, 66623, 66012, 66012, 63511, 67580,
};
static const s32 rlcc_leaves_1[] = {
	-2659, 0, -5952, 0, 1318, 1838, -519, 409,
	0, 0, 0, 0, 93, 933, -1547, 145,
};
static const s32 rlcc_leaves_2[] = {
	2204, 4424, 0, 2444, -3821, 547, 0, 0,
	-157, 849, -2455, 589, -5349, -4592, 0, -3595,
};
static const s32 rlcc_leaves_3[] = {
	-743, 388, -1898, -214, 426, 1031, -1236, 176,
	3121, 3066, -3265, 208, -1518, -1530, -3829, -3239,
};
static const s32 rlcc_leaves_4[] = {
	-1914, 0, 0, 0, -1993, 0, -2459, 0,
	2507, 2111, -136, -55, -9, 1254, -3614, 8,
};
static const s32 rlcc_leaves_5[] = {
	-808, 0, -2466, 0, 491, 0, -195, 0,
	680, 1120, -54, 447, -74, 380, -659, 108,
};
static const s32 rlcc_leaves_6[] = {
	499, 1809, -2291, 556, -14, 617, -851, 82,
	184, 879, -681, -950, -475, 182, -1644, 249,
};
static const s32 rlcc_leaves_7[] = {
	-112, 1456, -701, 2517, 790, 314, -422, 2158,
	-938, 0, -2360, 0, 18, 2319, -1019, 1182,
};
static const s32 rlcc_leaves_8[] = {
	101, -569, 452, 960, -243, -1097, 155, -246,
	-243, -1656, 459, -1422, -531, -1213, 111, -55,
};
static const s32 rlcc_leaves_9[] = {
	-416, 275, 1952, 906, -1948, -1101, 50, -1069,
	0, 0, 3238, 1276, 0, 0, 456, -24,
};

CL_INLINE s32 rlcc_infer(const s32 *w)
{
	s32 sum = 0;

	sum += rlcc_leaves_0[(w[0] > 3167) | (w[0] > -50524) << 1 | (w[5] > 53754) << 2 | (w[4] > 3806) << 3];
	sum += rlcc_leaves_1[(w[0] > -18) | (w[3] > 64089) << 1 | (w[1] > 52478) << 2 | (w[1] > 65590) << 3];
	sum += rlcc_leaves_2[(w[0] > 1540) | (w[2] > 2376) << 1 | (w[5] > 78641) << 2 | (w[7] > 52431) << 3];
	sum += rlcc_leaves_3[(w[0] > -640) | (w[2] > -350) << 1 | (w[5] > 65724) << 2 | (w[3] > 75608) << 3];
	sum += rlcc_leaves_4[(w[0] > -3291) | (w[3] > 60623) << 1 | (w[7] > 64954) << 2 | (w[0] > -43507) << 3];
	sum += rlcc_leaves_5[(w[0] > 637) | (w[3] > 66142) << 1 | (w[1] > 64246) << 2 | (w[0] > -10022) << 3];
	sum += rlcc_leaves_6[(w[0] > 2261) | (w[2] > 3199) << 1 | (w[3] > 62305) << 2 | (w[1] > 67315) << 3];
	sum += rlcc_leaves_7[(w[1] > 78627) | (w[3] > 70820) << 1 | (w[0] > -995) << 2 | (w[2] > -881) << 3];
	sum += rlcc_leaves_8[(w[7] > 69970) | (w[0] > 1093) << 1 | (w[2] > 560) << 2 | (w[3] > 67457) << 3];
	sum += rlcc_leaves_9[(w[1] > 62588) | (w[0] > -5415) << 1 | (w[2] > -4098) << 2 | (w[0] > -2007) << 3];
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

	if (w[4] > 3806) {
		if (w[5] > 53754) {
			if (w[0] > -50524) {
				if (w[0] > 3167) {
					sum += 67580;
				} else {
					sum += 63511;
				}
			} else {
				if (w[0] > 3167) {
					sum += 66012;
				} else {
					sum += 66012;
				}
			}
		} else {
			if (w[0] > -50524) {
				if (w[0] > 3167) {
					sum += 66623;
				} else {
					sum += 66012;
				}
			} else {
				if (w[0] > 3167) {
					sum += 66012;
				} else {
					sum += 66012;
				}
			}
		}
	} else {
		if (w[5] > 53754) {
			if (w[0] > -50524) {
				if (w[0] > 3167) {
					sum += 67776;
				} else {
					sum += 65846;
				}
			} else {
				if (w[0] > 3167) {
					sum += 66012;
				} else {
					sum += 59221;
				}
			}
		} else {
			if (w[0] > -50524) {
				if (w[0] > 3167) {
					sum += 70241;
				} else {
					sum += 71674;
				}
			} else {
				if (w[0] > 3167) {
					sum += 66012;
				} else {
					sum += 59294;
				}
			}
		}
	}
	if (w[1] > 65590) {
		if (w[1] > 52478) {
			if (w[3] > 64089) {
				if (w[0] > -18) {
					sum += 145;
				} else {
					sum += -1547;
				}
			} else {
				if (w[0] > -18) {
					sum += 933;
				} else {
					sum += 93;
				}
			}
		} else {
			if (w[3] > 64089) {
				if (w[0] > -18) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -18) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[1] > 52478) {
			if (w[3] > 64089) {
				if (w[0] > -18) {
					sum += 409;
				} else {
					sum += -519;
				}
			} else {
				if (w[0] > -18) {
					sum += 1838;
				} else {
					sum += 1318;
				}
			}
		} else {
			if (w[3] > 64089) {
				if (w[0] > -18) {
					sum += 0;
				} else {
					sum += -5952;
				}
			} else {
				if (w[0] > -18) {
					sum += 0;
				} else {
					sum += -2659;
				}
			}
		}
	}
	if (w[7] > 52431) {
		if (w[5] > 78641) {
			if (w[2] > 2376) {
				if (w[0] > 1540) {
					sum += -3595;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 1540) {
					sum += -4592;
				} else {
					sum += -5349;
				}
			}
		} else {
			if (w[2] > 2376) {
				if (w[0] > 1540) {
					sum += 589;
				} else {
					sum += -2455;
				}
			} else {
				if (w[0] > 1540) {
					sum += 849;
				} else {
					sum += -157;
				}
			}
		}
	} else {
		if (w[5] > 78641) {
			if (w[2] > 2376) {
				if (w[0] > 1540) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 1540) {
					sum += 547;
				} else {
					sum += -3821;
				}
			}
		} else {
			if (w[2] > 2376) {
				if (w[0] > 1540) {
					sum += 2444;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > 1540) {
					sum += 4424;
				} else {
					sum += 2204;
				}
			}
		}
	}
	if (w[3] > 75608) {
		if (w[5] > 65724) {
			if (w[2] > -350) {
				if (w[0] > -640) {
					sum += -3239;
				} else {
					sum += -3829;
				}
			} else {
				if (w[0] > -640) {
					sum += -1530;
				} else {
					sum += -1518;
				}
			}
		} else {
			if (w[2] > -350) {
				if (w[0] > -640) {
					sum += 208;
				} else {
					sum += -3265;
				}
			} else {
				if (w[0] > -640) {
					sum += 3066;
				} else {
					sum += 3121;
				}
			}
		}
	} else {
		if (w[5] > 65724) {
			if (w[2] > -350) {
				if (w[0] > -640) {
					sum += 176;
				} else {
					sum += -1236;
				}
			} else {
				if (w[0] > -640) {
					sum += 1031;
				} else {
					sum += 426;
				}
			}
		} else {
			if (w[2] > -350) {
				if (w[0] > -640) {
					sum += -214;
				} else {
					sum += -1898;
				}
			} else {
				if (w[0] > -640) {
					sum += 388;
				} else {
					sum += -743;
				}
			}
		}
	}
	if (w[0] > -43507) {
		if (w[7] > 64954) {
			if (w[3] > 60623) {
				if (w[0] > -3291) {
					sum += 8;
				} else {
					sum += -3614;
				}
			} else {
				if (w[0] > -3291) {
					sum += 1254;
				} else {
					sum += -9;
				}
			}
		} else {
			if (w[3] > 60623) {
				if (w[0] > -3291) {
					sum += -55;
				} else {
					sum += -136;
				}
			} else {
				if (w[0] > -3291) {
					sum += 2111;
				} else {
					sum += 2507;
				}
			}
		}
	} else {
		if (w[7] > 64954) {
			if (w[3] > 60623) {
				if (w[0] > -3291) {
					sum += 0;
				} else {
					sum += -2459;
				}
			} else {
				if (w[0] > -3291) {
					sum += 0;
				} else {
					sum += -1993;
				}
			}
		} else {
			if (w[3] > 60623) {
				if (w[0] > -3291) {
					sum += 0;
				} else {
					sum += 0;
				}
			} else {
				if (w[0] > -3291) {
					sum += 0;
				} else {
					sum += -1914;
				}
			}
		}
	}
	if (w[0] > -10022) {
		if (w[1] > 64246) {
			if (w[3] > 66142) {
				if (w[0] > 637) {
					sum += 108;
				} else {
					sum += -659;
				}
			} else {
				if (w[0] > 637) {
					sum += 380;
				} else {
					sum += -74;
				}
			}
		} else {
			if (w[3] > 66142) {
				if (w[0] > 637) {
					sum += 447;
				} else {
					sum += -54;
				}
			} else {
				if (w[0] > 637) {
					sum += 1120;
				} else {
					sum += 680;
				}
			}
		}
	} else {
		if (w[1] > 64246) {
			if (w[3] > 66142) {
				if (w[0] > 637) {
					sum += 0;
				} else {
					sum += -195;
				}
			} else {
				if (w[0] > 637) {
					sum += 0;
				} else {
					sum += 491;
				}
			}
		} else {
			if (w[3] > 66142) {
				if (w[0] > 637) {
					sum += 0;
				} else {
					sum += -2466;
				}
			} else {
				if (w[0] > 637) {
					sum += 0;
				} else {
					sum += -808;
				}
			}
		}
	}
	if (w[1] > 67315) {
		if (w[3] > 62305) {
			if (w[2] > 3199) {
				if (w[0] > 2261) {
					sum += 249;
				} else {
					sum += -1644;
				}
			} else {
				if (w[0] > 2261) {
					sum += 182;
				} else {
					sum += -475;
				}
			}
		} else {
			if (w[2] > 3199) {
				if (w[0] > 2261) {
					sum += -950;
				} else {
					sum += -681;
				}
			} else {
				if (w[0] > 2261) {
					sum += 879;
				} else {
					sum += 184;
				}
			}
		}
	} else {
		if (w[3] > 62305) {
			if (w[2] > 3199) {
				if (w[0] > 2261) {
					sum += 82;
				} else {
					sum += -851;
				}
			} else {
				if (w[0] > 2261) {
					sum += 617;
				} else {
					sum += -14;
				}
			}
		} else {
			if (w[2] > 3199) {
				if (w[0] > 2261) {
					sum += 556;
				} else {
					sum += -2291;
				}
			} else {
				if (w[0] > 2261) {
					sum += 1809;
				} else {
					sum += 499;
				}
			}
		}
	}
	if (w[2] > -881) {
		if (w[0] > -995) {
			if (w[3] > 70820) {
				if (w[1] > 78627) {
					sum += 1182;
				} else {
					sum += -1019;
				}
			} else {
				if (w[1] > 78627) {
					sum += 2319;
				} else {
					sum += 18;
				}
			}
		} else {
			if (w[3] > 70820) {
				if (w[1] > 78627) {
					sum += 0;
				} else {
					sum += -2360;
				}
			} else {
				if (w[1] > 78627) {
					sum += 0;
				} else {
					sum += -938;
				}
			}
		}
	} else {
		if (w[0] > -995) {
			if (w[3] > 70820) {
				if (w[1] > 78627) {
					sum += 2158;
				} else {
					sum += -422;
				}
			} else {
				if (w[1] > 78627) {
					sum += 314;
				} else {
					sum += 790;
				}
			}
		} else {
			if (w[3] > 70820) {
				if (w[1] > 78627) {
					sum += 2517;
				} else {
					sum += -701;
				}
			} else {
				if (w[1] > 78627) {
					sum += 1456;
				} else {
					sum += -112;
				}
			}
		}
	}
	if (w[3] > 67457) {
		if (w[2] > 560) {
			if (w[0] > 1093) {
				if (w[7] > 69970) {
					sum += -55;
				} else {
					sum += 111;
				}
			} else {
				if (w[7] > 69970) {
					sum += -1213;
				} else {
					sum += -531;
				}
			}
		} else {
			if (w[0] > 1093) {
				if (w[7] > 69970) {
					sum += -1422;
				} else {
					sum += 459;
				}
			} else {
				if (w[7] > 69970) {
					sum += -1656;
				} else {
					sum += -243;
				}
			}
		}
	} else {
		if (w[2] > 560) {
			if (w[0] > 1093) {
				if (w[7] > 69970) {
					sum += -246;
				} else {
					sum += 155;
				}
			} else {
				if (w[7] > 69970) {
					sum += -1097;
				} else {
					sum += -243;
				}
			}
		} else {
			if (w[0] > 1093) {
				if (w[7] > 69970) {
					sum += 960;
				} else {
					sum += 452;
				}
			} else {
				if (w[7] > 69970) {
					sum += -569;
				} else {
					sum += 101;
				}
			}
		}
	}
	if (w[0] > -2007) {
		if (w[2] > -4098) {
			if (w[0] > -5415) {
				if (w[1] > 62588) {
					sum += -24;
				} else {
					sum += 456;
				}
			} else {
				if (w[1] > 62588) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		} else {
			if (w[0] > -5415) {
				if (w[1] > 62588) {
					sum += 1276;
				} else {
					sum += 3238;
				}
			} else {
				if (w[1] > 62588) {
					sum += 0;
				} else {
					sum += 0;
				}
			}
		}
	} else {
		if (w[2] > -4098) {
			if (w[0] > -5415) {
				if (w[1] > 62588) {
					sum += -1069;
				} else {
					sum += 50;
				}
			} else {
				if (w[1] > 62588) {
					sum += -1101;
				} else {
					sum += -1948;
				}
			}
		} else {
			if (w[0] > -5415) {
				if (w[1] > 62588) {
					sum += 906;
				} else {
					sum += 1952;
				}
			} else {
				if (w[1] > 62588) {
					sum += 275;
				} else {
					sum += -416;
				}
			}
		}
	}
	return sum;
}
#endif

CL_POLICY(rlcc, RLCC_PARAMETERS, 0);

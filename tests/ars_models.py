"""A YANG module with the nodes of SONiC's adaptive routing, for tests.

Written for closloop. It has the tables and types of sonic-ars.yang in sonic-buildimage PR 22264
(316ed5ac60, 2026-05-06), which no release has; test_sonic_yang.py compares the two where that one
was fetched.
"""

ARS = """
module sonic-ars {
    yang-version 1.1;
    namespace "http://github.com/sonic-net/sonic-ars";
    prefix sars;
    /* of the pull request, in short */
    container sonic-ars {
        container ARS_PROFILE {
            list ARS_PROFILE_LIST {
                key "profile_name";
                max-elements 1;
                leaf profile_name { type string; }
                leaf algorithm { type enumeration { enum ewma; } }
                leaf ars_nhg_path_selector_mode {
                    type enumeration { enum global; enum interface; enum nexthop; }
                }
                leaf default_ars_object { type leafref { path "/sars:sonic-ars"; } }
                leaf sampling_interval { type uint32; }
            }
        }
        container ARS_INTERFACE {
            list ARS_INTERFACE_LIST {
                key "if_name";
                leaf if_name { type union { type string; } }
                leaf scaling_factor { type uint32; default "1"; }
                leaf ars_obj_name { type leafref { path "/sars:sonic-ars"; } }
            }
        }
        container ARS_OBJECT {
            list ARS_OBJECT_LIST {
                key "ars_obj_name";
                leaf ars_obj_name { type string; }
                leaf assign_mode {
                    type enumeration { enum per_flowlet_quality{ description "a; {b}"; }
                                       enum per_packet_quality; }
                }
                leaf flowlet_idle_time {   // microseconds
                    type uint16 { range 2..2047; }
                    description 'Idle duration in ' + "microseconds.";
                }
                leaf max_flows { type uint32; }
            }
        }
    }
}
"""

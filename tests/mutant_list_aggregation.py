"""The rows of mutant_list.py about aggregation: stations, dealing, what ranks do, and the service."""

from mutant import Mutant
from mutant_list_stations import DEALING, STATIONS

RANKS = [
    Mutant(
        "lost-station-not-told",
        "collective/stations.cpp",
        "  g_.flood(wire::FrameType::kAggGone, 0, 0, body.bytes(), told_by);\n",
        "",
        "collective",
        "Stations*",
    ),
    Mutant(
        "owners-wait-for-a-lost-station",
        "collective/stations.cpp",
        """      drop(*op, static_cast<uint16_t>(j), "a station of the tree is lost");
      g_.ops.touch(*op);
""",
        "",
        "collective",
        "Stations.OneRank*",
    ),
    Mutant(
        "operations-posted-after-a-loss-wait-for-it",
        "collective/stations.cpp",
        "if (set.stations[j].out) drop(",
        "if (set.stations[j].member == kNoMember) drop(",
        "collective",
        "Stations*",
    ),
    Mutant(
        "silent-station-never-given-up",
        "collective/stations.cpp",
        "const Member silent = drained ? watch_.silent(now) : kNoMember;",
        "const Member silent = drained && now == kNever ? watch_.silent(now) : kNoMember;",
        "collective",
        "Stations.StopAndGoOn",
    ),
    Mutant(
        "late-result-of-a-dropped-station-placed",
        "collective/stations.cpp",
        "if (op->reduce->stations->off[station]) {",
        "if (op->reduce->stations->off.empty()) {",
        "collective",
        "Stations*",
    ),
    Mutant(
        "stations-opened-without-bound",
        "collective/stations.cpp",
        "static_cast<size_t>(ahead - dealt_.begin()) >= kMostOpen) return;",
        "ahead == dealt_.end()) return;",
        "collective",
        "Stations*",
    ),
    Mutant(
        "roster-in-force-where-each-rank-stands",
        "collective/roster_change.cpp",
        "StationSet set{roster_.version, from, {}};",
        "StationSet set{roster_.version, g_.ops.next(), {}};",
        "collective",
        "Roster*",
    ),
    Mutant(
        "silent-station-counts-as-reached",
        "collective/roster_change.cpp",
        "if (contact != nullptr && contact->down.ok() && contact->answered) continue;",
        "if (contact != nullptr && contact->down.ok()) continue;",
        "collective",
        "Roster*",
    ),
    Mutant(
        "stations-parted-from-before-all-have-ended",
        "collective/roster_change.cpp",
        "if (!parting_ || (latest != nullptr && g_.ops.base() < latest->from)) return;",
        "if (!parting_) return;",
        "collective",
        "Roster*:Stations.Gone*",
    ),
    Mutant(
        "station-that-comes-back-not-met-again",
        "collective/roster_change.cpp",
        "if (tried || used || !std::exchange(station.met, false)) continue;",
        "if (tried || used || !station.met) continue;",
        "collective",
        "Roster*",
    ),
    Mutant(
        "loss-before-the-line-forgotten",
        "collective/station_table.cpp",
        "    early_.push_back(loss);\n",
        "",
        "collective",
        "StationTable*:RosterSchedules*",
    ),
    Mutant(
        "set-forgotten-while-operations-need-it",
        "collective/station_table.cpp",
        "sets_[1].from <= base",
        "sets_[1].from <= base + 1",
        "collective",
        "StationTable*",
    ),
]

SERVICE = [
    Mutant(
        "hung-aggregator-waited-for",
        "engine/registrar.cpp",
        "if (row.admission.answer_is_late(now)) {",
        "if (row.admission.answer_is_late(now) && now == 0) {",
        "engine",
        "RegistrarTest.OneThatHangs*",
    ),
    Mutant(
        "equal-rosters-offered-again",
        "engine/registrar.cpp",
        "  if (entry.offered && uids == entry.last_offer) return;\n",
        "",
        "engine",
        "RegistrarTest.AConnectionThatEnds*",
    ),
    Mutant(
        "group-leaves-without-a-word",
        "engine/registrar.cpp",
        """      for (Row& row : entry.rows) {
        if (row.link) row.link->send(wire::Bye{});
      }
""",
        "",
        "engine",
        "RegistrarTest.AsksOffers*",
    ),
    Mutant(
        "lost-aggregator-not-asked-again",
        "engine/registrar.cpp",
        "    row.admission.lost(why, monotonic_now());\n",
        "    if (why.empty()) row.admission.lost(why, monotonic_now());\n",
        "engine",
        "RegistrarTest.OneThatIsLost*",
    ),
    Mutant(
        "quota-of-other-jobs-not-counted",
        "service/admission.cpp",
        "if (grant.quota > options.quota - used.quota) {",
        "if (grant.quota > options.quota) {",
        "service",
        "Admission*",
    ),
    Mutant(
        "quota-not-given-back",
        "service/jobs.cpp",
        "    return job.ending && std::all_of(job.stations.begin(), job.stations.end(),",
        "    return job.number == 0 && std::all_of(job.stations.begin(), job.stations.end(),",
        "service",
        "AggregatorTest.WhatAJobTook*",
    ),
    Mutant(
        "descriptors-of-jobs-not-counted",
        "service/jobs.cpp",
        "    used.descriptors += job.descriptors;\n",
        "",
        "service",
        "Jobs*",
    ),
    Mutant(
        "any-host-may-ask",
        "service/jobs.cpp",
        "if (!options_.allows(host)) {",
        "if (!options_.allows(host) && host == 0) {",
        "service",
        "AggregatorTest.Hosts*",
    ),
    Mutant(
        "job-goes-on-with-one-of-its-stations-ended",
        "service/jobs.cpp",
        "why && !job.ending) end(job, *why, now);",
        "why && !job.ending && why->empty()) end(job, *why, now);",
        "service",
        "AggregatorTest.ABadRoster*",
    ),
    Mutant(
        "job-without-an-asker-ends-although-it-is-used",
        "service/jobs.cpp",
        "if (job.link != 0 || job.last.in > job.before.in) job.heard = now;",
        "if (job.link != 0) job.heard = now;",
        "service",
        "JobsAtADoor*",
    ),
    Mutant(
        "another-roster-of-a-known-version-taken",
        "service/station_planner.cpp",
        "if (known && at->roster.stations == roster.stations) return {};",
        "if (known) return {};",
        "service",
        "*",
    ),
    Mutant(
        "roster-of-anybodys-name-taken",
        "service/station_thread.cpp",
        "!wire::verify_frame(frame) || header.member != from ||",
        "!wire::verify_frame(frame) ||",
        "service",
        "*",
    ),
]

AGGREGATION = [*STATIONS, *DEALING, *RANKS, *SERVICE]

// `mcast-simulate swarm`.
#pragma once

// `words`: the arguments after "swarm". Exit codes: 0 no law is broken, 1 one is, 2 wrong options.
int swarm_main(int count, char** words);

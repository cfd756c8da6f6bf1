// One trial in ns-3: builds what the controller describes, then does what it asks, until it is gone.
#include "fabric.h"
#include "roce_fabric.h"
#include "wire.h"

#include <csignal>
#include <sys/prctl.h>
#include <utility>

namespace closloop {

// Answers what only RoCE NICs and their switches are asked for; false if it is nothing of that.
bool ServeOwn(const Fabric&, Request&) { return false; }

bool ServeOwn(roce::Fabric& fabric, Request& request) {
    switch (request.operation()) {
    case NICS:
        Answer(fabric.Nics());
        return true;
    case BUFFERS:
        Answer(fabric.Buffers());
        return true;
    case INCIDENTS:
        Answer(fabric.Incidents());
        return true;
    case PARAMETERS: {
        Ints hosts = request.Next();
        Answer(fabric.SetParameters(hosts, request.Next()));
        return true;
    }
    case PAUSE: {
        Ints frame = request.Next();
        fabric.SendPause(frame.at(0), frame.at(1), frame.at(2));
        Answer({});
        return true;
    }
    default:
        return false;
    }
}

// Answers the requests about a built fabric.
template <class Built> void Serve(Built& fabric, Request& request) {
    while (request.Receive()) {
        switch (request.operation()) {
        case RUN:
            fabric.RunUntil(request.Next().at(0));
            policies::Written();
            Answer({fabric.Now(), fabric.ended()});
            break;
        case READ:
            Answer(fabric.Counters());
            break;
        case THRESHOLDS: {
            Ints queues = request.Next(), kmin = request.Next(), kmax = request.Next();
            fabric.SetThresholds(queues, kmin, kmax, request.Next());
            Answer({});
            break;
        }
        case LINKS:
            fabric.Cut(request.Next());
            Answer({});
            break;
        case ROUTES:
            fabric.SetRoutes(request.Next());
            Answer({});
            break;
        case FLOWS:
            Answer(fabric.Outcome());
            break;
        case PATHS: {
            Ints places = request.Next();
            Answer(fabric.Paths(places, request.Next()));
            break;
        }
        case PAIRS:
            Answer(fabric.Pairs(static_cast<size_t>(request.Next().at(0))));
            break;
        case COUNTERS:
            Answer(fabric.FlowCounters());
            break;
        case FLOW_TABLE: {
            Ints slots = request.Next();
            Answer(fabric.table() ? fabric.table()->Read(slots.at(0), slots.at(1)) : Ints{});
            break;
        }
        default:
            if (!ServeOwn(fabric, request)) {
                Fail("an operation that is not known");
            }
        }
    }
}

} // namespace closloop

// closloop-ns3 [LIBRARY TEXT]: with a library, its policy replaces the one that the trial names.
int main(int count, char** arguments) {
    using namespace closloop;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL); // ends with its controller, however that ends
    std::signal(SIGINT, SIG_IGN);       // Ctrl-C is the controller's affair
    if (count == 3 && !policies::Load(arguments[1], arguments[2])) {
        Fail("a policy's library cannot be loaded");
    }
    Request request;
    if (request.Receive()) {
        if (request.operation() != BUILD) {
            Fail("the first request builds the fabric");
        }
        Ints scalars = request.Next();
        if (scalars.at(IS_ROCE) != 0) {
            roce::Fabric fabric(std::move(scalars), request);
            Answer({});
            Serve(fabric, request);
        } else {
            Fabric fabric(std::move(scalars), request);
            Answer({});
            Serve(fabric, request);
        }
    }
    std::_Exit(0); // what ns-3 would take down object by object, the kernel takes down at once
}

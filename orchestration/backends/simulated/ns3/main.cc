// One trial in ns-3: builds what the controller describes, then does what it asks, until it is gone.
#include "fabric.h"
#include "wire.h"

#include <csignal>
#include <memory>
#include <sys/prctl.h>

int main() {
    using namespace closloop;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL); // ends with its controller, however that ends
    std::signal(SIGINT, SIG_IGN);       // Ctrl-C is the controller's affair
    HostSocket::GetTypeId();
    LinuxDctcp::GetTypeId();
    LinuxReduction::GetTypeId();
    HostTcp::GetTypeId();
    std::unique_ptr<Fabric> fabric;
    Request request;
    while (request.Receive()) {
        if (request.operation() == BUILD) {
            fabric = std::make_unique<Fabric>(request);
            fabric->traffic().Connect();
            Answer({});
            continue;
        }
        if (!fabric) {
            Fail("the first request builds the fabric");
        }
        switch (request.operation()) {
        case RUN:
            fabric->traffic().RunUntil(request.Next().at(0));
            Answer({fabric->traffic().Now(), fabric->traffic().ended()});
            break;
        case READ:
            Answer(fabric->Counters());
            break;
        case THRESHOLDS: {
            Ints queues = request.Next(), kmin = request.Next(), kmax = request.Next();
            fabric->SetThresholds(queues, kmin, kmax, request.Next());
            Answer({});
            break;
        }
        case LINKS:
            fabric->Cut(request.Next());
            Answer({});
            break;
        case ROUTES:
            fabric->SetRoutes(request.Next());
            Answer({});
            break;
        case FLOWS:
            Answer(fabric->Outcome());
            break;
        case FLOW_TABLE: {
            Ints slots = request.Next();
            Answer(fabric->table() ? fabric->table()->Read(slots.at(0), slots.at(1)) : Ints{});
            break;
        }
        default:
            Fail("an operation that is not known");
        }
    }
    std::_Exit(0); // what ns-3 would take down object by object, the kernel takes down at once
}

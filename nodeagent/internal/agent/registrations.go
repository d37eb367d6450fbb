package agent

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/kubeletplugin"
)

const (
	// registrationInterval is how often the agent looks at the registrations. What it sees twice is reported: a driver that is replaced is back before.
	registrationInterval = 30 * time.Second

	reasonNotRegistered    = "CSIDriverNotRegistered"
	reasonRegistrationLost = "CSIDriverRegistrationLost"
	reasonTwoDrivers       = "CSIDriverNameTaken"
	reasonRegistered       = "CSIDriverRegistered"
)

// finding is what is wrong with the registration of a driver.
type finding struct{ reason, message string }

// registrations is what was seen of the registrations of drivers. Each finding is reported once, when it is seen for the second time.
type registrations struct {
	known    sets.Set[string]   // drivers that were registered
	seen     map[string]finding // by socket, or by driver
	reported map[string]finding
	// endpoints are the sockets of the registered drivers by name, and former those from which a registrar has taken the name.
	endpoints, former map[string]string
	// answers reports whether a driver listens at a socket.
	answers func(endpoint string) bool
}

func newRegistrations(answers func(string) bool) *registrations {
	return &registrations{
		known: sets.New[string](), reported: map[string]finding{}, endpoints: map[string]string{}, former: map[string]string{}, answers: answers,
	}
}

// look returns what is new to report: findings, and drivers of reported ones that are registered again.
func (r *registrations) look(s kubeletplugin.State) (findings []finding, back []string) {
	now := map[string]finding{}
	for _, g := range s.Registrations {
		if g.Problem != "" {
			now[g.Path] = finding{reasonNotRegistered, fmt.Sprintf("CSI driver %q cannot be registered by socket %q: %s", g.Driver, g.Path, g.Problem)}
		} else if former := r.formerOf(g); former != "" {
			now[g.Driver] = finding{reasonTwoDrivers, fmt.Sprintf(
				"Two drivers have the name %q: the one at %q is registered, and has replaced the one at %q, which is still there; remove one of them, or give it another name",
				g.Driver, g.Endpoint, former)}
		}
	}
	registered := sets.New(s.Drivers...)
	for name := range r.known.Difference(registered) {
		now[name] = finding{reasonRegistrationLost, fmt.Sprintf(
			"CSI driver %q is no longer registered on this node, its registration socket has gone: new pods with its volumes wait; look whether the driver's pod on this node runs", name)}
	}
	for key, f := range now {
		if r.seen[key] == f && r.reported[key] != f {
			findings = append(findings, f)
			r.reported[key] = f
		}
	}
	for key, f := range r.reported {
		if _, still := now[key]; still {
			continue
		}
		delete(r.reported, key)
		if f.reason == reasonRegistrationLost {
			back = append(back, key)
		}
	}
	slices.SortFunc(findings, func(a, b finding) int { return strings.Compare(a.message, b.message) })
	slices.Sort(back)
	r.seen, r.known = now, r.known.Union(registered)
	return findings, back
}

// formerOf returns the socket of another driver of the same name, from which a registrar took the name, and which still listens; "" if there is none.
func (r *registrations) formerOf(g kubeletplugin.Registration) string {
	if !g.Registered {
		return ""
	}
	if before := r.endpoints[g.Driver]; before != "" && before != g.Endpoint {
		r.former[g.Driver] = before
	}
	r.endpoints[g.Driver] = g.Endpoint
	former := r.former[g.Driver]
	if former == "" || former == g.Endpoint || !r.answers(former) {
		delete(r.former, g.Driver)
		return ""
	}
	return former
}

// listens reports whether a socket accepts connections.
func listens(ctx context.Context, endpoint string) bool {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}

// followRegistrations records events on the Node about drivers that are not registered.
func (a *Agent) followRegistrations(ctx context.Context) error {
	r := newRegistrations(func(endpoint string) bool { return listens(ctx, endpoint) })
	ticker := time.NewTicker(registrationInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		findings, back := r.look(a.plugin.State())
		for _, f := range findings {
			a.events.Warning(a.nodeObject(), f.reason, f.message)
		}
		for _, name := range back {
			a.events.Normal(a.nodeObject(), reasonRegistered, fmt.Sprintf("CSI driver %q is registered again", name))
		}
	}
}

// Package state reports the progress of a registration: as health, as metrics
// and as JSON. It decides nothing.
package state

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Phase is a state of the registration.
type Phase string

const (
	// WaitingForDriver: the driver's name is not known yet.
	WaitingForDriver Phase = "waiting for driver"
	// WaitingForKubelet: the socket is there and the kubelet has not decided.
	WaitingForKubelet Phase = "waiting for kubelet"
	// Registered: the kubelet has accepted the driver.
	Registered Phase = "registered"
	// Rejected: the kubelet has refused the driver; it will be tried again.
	Rejected Phase = "rejected"
	// Failed: the registration socket cannot be made; it will be tried again.
	Failed Phase = "failed"
	// Replaced: another registrar serves the socket of this driver.
	Replaced Phase = "replaced"
)

// phases returns all of them, for the metric.
func phases() []Phase {
	return []Phase{WaitingForDriver, WaitingForKubelet, Registered, Rejected, Failed, Replaced}
}

// Results of an attempt to register.
const (
	// ResultRegistered counts acceptances by the kubelet.
	ResultRegistered = "registered"
	// ResultRejected counts refusals by the kubelet.
	ResultRejected = "rejected"
	// ResultFailed counts sockets that could not be made.
	ResultFailed = "failed"
)

// Snapshot is the state at one moment.
type Snapshot struct {
	// Driver is the name of the driver, empty before it is known.
	Driver string `json:"driver,omitempty"`
	// Phase is how far the registration is.
	Phase Phase `json:"phase"`
	// Reason says why, for all phases but WaitingForKubelet and Registered.
	Reason string `json:"reason,omitempty"`
	// Socket is the path of the registration socket.
	Socket string `json:"socket,omitempty"`
}

// String returns the state as a line, as in "rejected: node is gone".
func (s Snapshot) String() string {
	if s.Reason == "" {
		return string(s.Phase)
	}
	return fmt.Sprintf("%s: %s", s.Phase, s.Reason)
}

// Machine holds the state. It is safe for concurrent use.
type Machine struct {
	status   *prometheus.GaugeVec
	attempts *prometheus.CounterVec

	mu  sync.Mutex
	now Snapshot
}

// New returns a machine that waits for the driver, with its metrics on reg.
func New(reg prometheus.Registerer) *Machine {
	m := &Machine{
		status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "csi_registration_status",
			Help: "State of the driver's registration with the kubelet: 1 for the state it is in, 0 for the others.",
		}, []string{"state"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "csi_registration_attempts_total",
			Help: "Attempts to register the driver with the kubelet, by result.",
		}, []string{"result"}),
	}
	reg.MustRegister(m.status, m.attempts)
	for _, result := range []string{ResultRegistered, ResultRejected, ResultFailed} {
		m.attempts.WithLabelValues(result)
	}
	m.Set(Snapshot{Phase: WaitingForDriver})
	return m
}

// Set changes the state, and reports whether it was another before.
func (m *Machine) Set(s Snapshot) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := m.now != s
	m.now = s
	for _, p := range phases() {
		value := 0.0
		if p == s.Phase {
			value = 1
		}
		m.status.WithLabelValues(string(p)).Set(value)
	}
	return changed
}

// Waiting records why the driver's name is not known yet. It changes nothing
// in any other phase.
func (m *Machine) Waiting(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now.Phase == WaitingForDriver {
		m.now.Reason = reason
	}
}

// Count counts the result of an attempt.
func (m *Machine) Count(result string) { m.attempts.WithLabelValues(result).Inc() }

// Get returns the state.
func (m *Machine) Get() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Health returns nil when the registrar does what it can: it is registered, or
// waits for a kubelet. Otherwise the error is the state.
func (m *Machine) Health() error {
	now := m.Get()
	if now.Phase == Registered || now.Phase == WaitingForKubelet {
		return nil
	}
	return fmt.Errorf("%s", now)
}

// Ready returns nil when the driver is registered.
func (m *Machine) Ready() error {
	now := m.Get()
	if now.Phase == Registered {
		return nil
	}
	return fmt.Errorf("%s", now)
}

package driverobject

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// Config of Shared and its Controllers. All fields are required.
type Config struct {
	// Environment has the driver, the Kubernetes API and the recorders.
	sidecar.Environment
	// Flags has the fields of the spec that flags set.
	Flags storagev1.CSIDriverSpec
	// Retry is the backoff after failures.
	Retry flagset.Retry
	// CSITimeout is the deadline of asking the driver again, and KubeTimeout that of each call to the API server.
	CSITimeout, KubeTimeout time.Duration
}

// errNotWritten is an object that the controller has not looked at yet.
var errNotWritten = errors.New("the CSIDriver object was not compared with the driver's answers yet")

// Shared is what the Controllers of a process have in common, of which there is one after the other if the Lease is lost: metrics, the last error, and the problems of the object.
type Shared struct {
	cfg      Config
	gauge    *prometheus.GaugeVec
	restored prometheus.Counter

	mu       sync.Mutex
	err      error // of the last attempt of a Controller that runs
	problems []Problem
}

// NewShared returns what Controllers share. It must be called once for a Registerer.
func NewShared(cfg Config) *Shared {
	labels := prometheus.Labels{"driver_name": cfg.Driver}
	s := &Shared{
		cfg: cfg,
		gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "csi_cluster_driver_registrar_problems", ConstLabels: labels,
			Help: "Fields of the CSIDriver object that differ from their wanted values, by the reason of the event.",
		}, []string{"reason"}),
		restored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "csi_cluster_driver_registrar_restored_fields_total", ConstLabels: labels,
			Help: "Fields of the CSIDriver object that others had changed and that were restored.",
		}),
	}
	for _, reason := range []string{ReasonConflict, ReasonImmutable, ReasonNotStored, ReasonCapacity} {
		s.gauge.WithLabelValues(reason).Set(0)
	}
	cfg.Registerer.MustRegister(s.gauge, s.restored)
	return s
}

// features returns what the driver announces now.
func (s *Shared) features() Features { return FeaturesOf(s.cfg.CSI.Info()) }

// reread asks the driver for its capabilities again.
func (s *Shared) reread(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CSITimeout)
	defer cancel()
	_, err := s.cfg.CSI.Wait(ctx)
	return err
}

// Check returns an error while attachRequired does not follow from flags and the driver's answers, and while an instance that works could not compare or write
// the object. Fields that others own are no error.
func (s *Shared) Check() error {
	_, err := wanted(s.cfg.Flags, s.features())
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(err, s.err)
}

// note keeps the error of an attempt.
func (s *Shared) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// set keeps the problems, and returns those before.
func (s *Shared) set(problems []Problem) (before []Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, problem := range s.problems {
		s.gauge.WithLabelValues(problem.Reason).Dec()
	}
	for _, problem := range problems {
		s.gauge.WithLabelValues(problem.Reason).Inc()
	}
	before, s.problems = s.problems, problems
	return before
}

// State is what /debug/state shows.
type State struct {
	// Driver is the name of the driver, and of the object.
	Driver string `json:"driver"`
	// Features are what the driver announces.
	Features Features `json:"features"`
	// Wanted are the wanted fields of the spec.
	Wanted map[string]any `json:"wanted"`
	// Error is why the object could not be written.
	Error string `json:"error,omitempty"`
	// Problems are the fields that differ from their wanted values.
	Problems []Problem `json:"problems"`
	// Queue is the work queue, once the instance works.
	Queue *reconcile.State `json:"queue,omitempty"`
}

// state returns a snapshot without the queue.
func (s *Shared) state() State {
	state := State{Driver: s.cfg.Driver, Features: s.features(), Problems: []Problem{}}
	spec, _ := wanted(s.cfg.Flags, state.Features) // Check has the error
	state.Wanted = fieldsOf(spec)
	if err := s.Check(); err != nil {
		state.Error = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state.Problems = append(state.Problems, s.problems...)
	return state
}

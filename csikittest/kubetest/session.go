package kubetest

import (
	"errors"
	"sync/atomic"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// ErrCut is what requests of a session end with after its Cut.
var ErrCut = errors.New("connection to the API server is cut")

// Session is the connection of one process, which a test can cut: after Cut no
// request reaches the cluster, and no answer comes back. That is what a crash looks like from outside,
// whatever the process still tries.
type Session struct {
	cluster *Cluster
	cut     atomic.Bool
}

// NewSession returns a session that is not cut.
func (c *Cluster) NewSession() *Session { return &Session{cluster: c} }

// Client returns a client that works until Cut.
func (s *Session) Client() kube.Client { return s.connection() }

// Cut ends the session. Requests that hang end by their context, as always, and so do watches that run.
func (s *Session) Cut() { s.cut.Store(true) }

// Restore ends what Cut has begun, for the requests that follow.
func (s *Session) Restore() { s.cut.Store(false) }

// check is ErrCut when the session is over; no session never is.
func (s *Session) check() error {
	if s != nil && s.cut.Load() {
		return ErrCut
	}
	return nil
}

package e2e

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// snapshotsAside are the questions that need no snapshots.
func snapshotsAside(all []question) (others []question) {
	for _, q := range all {
		if !strings.Contains(strings.ToLower(q.promql), "snapshot") {
			others = append(others, q)
		}
	}
	return others
}

// snapshotRound has one snapshot taken and deleted, and one refused by the driver: that of a claim whose volume is not there, which
// failEverywhere has made.
func (s *story) snapshotRound(round int) {
	s.t.Helper()
	s.addSnapshotClass("")
	name := fmt.Sprintf("snapshot-%d", round)
	s.CreateClaim(name, s.ImmediateClass())
	s.WaitBound(name)
	good := s.take(name, name)
	bad := s.take(name+"-bad", fmt.Sprintf("%s-bad-%d-gone", s.Namespace, round))
	s.snapshotReady(good)
	s.Wait("the driver to refuse a snapshot", func(context.Context) (bool, error) {
		message, _, err := unstructured.NestedString(s.read(bad).Object, "status", "error", "message")
		return strings.Contains(message, "NotFound"), err
	})
	s.delete(good)
	s.delete(bad)
	s.waitNoSnapshots()
	s.DeleteClaim(name)
}

package e2e

import (
	"context"
	"fmt"
	"slices"
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

// healthAside leaves out what only the health monitor answers, which runs on no cluster of these tests: promtool tries its alerts
// (deploy/components/monitoring/rules.test.yaml).
func healthAside(all []question) []question {
	return slices.DeleteFunc(all, func(q question) bool {
		return strings.Contains(q.promql, "csi_volume_health_") || strings.Contains(q.promql, "csi_controller_volume_health_")
	})
}

// snapshotRound has one snapshot taken and deleted, and one refused by the driver: that of a claim whose volume is not there, which
// failEverywhere has made.
func (s *story) snapshotRound(round int) {
	s.T.Helper()
	s.AddSnapshotClass("")
	name := fmt.Sprintf("snapshot-%d", round)
	s.CreateClaim(name, s.ImmediateClass())
	s.WaitBound(name)
	good := s.TakeSnapshot(name, name)
	bad := s.TakeSnapshot(name+"-bad", fmt.Sprintf("%s-bad-%d-gone", s.Namespace, round))
	s.WaitSnapshotReady(good)
	s.Wait("the driver to refuse a snapshot", func(context.Context) (bool, error) {
		message, _, err := unstructured.NestedString(s.Read(bad).Object, "status", "error", "message")
		return strings.Contains(message, "NotFound"), err
	})
	s.Delete(good)
	s.Delete(bad)
	s.WaitNoSnapshots()
	s.DeleteClaim(name)
}

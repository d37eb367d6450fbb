package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

func entry(category csi.VolumeHealthErrorType, reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
	return &csi.VolumeHealth_VolumeHealthEntry{Status: category, Reason: reason, Message: message}
}

func TestHealthOf(t *testing.T) {
	many := make([]*csi.VolumeHealth_VolumeHealthEntry, 20)
	for i := range many {
		many[i] = entry(csi.VolumeHealthErrorType_DEGRADED, fmt.Sprintf("R%02d", i), "")
	}
	for name, test := range map[string]struct {
		reason   string
		reported []*csi.VolumeHealth_VolumeHealthEntry
		want     string
		unknown  int
		count    int
	}{
		"Healthy": {reason: "no problem is known"},
		"Sorted": {
			reason: "the order of the driver is no news",
			reported: []*csi.VolumeHealth_VolumeHealthEntry{
				entry(csi.VolumeHealthErrorType_INACCESSIBLE, "B", "b"), entry(csi.VolumeHealthErrorType_DATA_LOSS, "Z", ""), entry(csi.VolumeHealthErrorType_INACCESSIBLE, "A", "a"),
			},
			want: "DataLoss (Z); Inaccessible (A): a; Inaccessible (B): b", count: 3,
		},
		"Twice": {
			reason:   "category and reason are the key of the list in the API",
			reported: []*csi.VolumeHealth_VolumeHealthEntry{entry(csi.VolumeHealthErrorType_DEGRADED, "A", "x"), entry(csi.VolumeHealthErrorType_DEGRADED, "A", "y")},
			want:     "Degraded (A): x", count: 1,
		},
		"Unknown": {
			reason:   "CSI v1.13: COs ignore values that they do not know, and act on the others",
			reported: []*csi.VolumeHealth_VolumeHealthEntry{entry(99, "New", "x"), entry(csi.VolumeHealthErrorType_DEGRADED, "A", "x"), entry(0, "None", "x")},
			want:     "Degraded (A): x", unknown: 2, count: 1,
		},
		"BadReasons": {
			reason: "the API server refuses a status with such a reason",
			reported: []*csi.VolumeHealth_VolumeHealthEntry{
				entry(csi.VolumeHealthErrorType_DEGRADED, "", "x"), entry(csi.VolumeHealthErrorType_DATA_LOSS, "not CamelCase", "y"),
				entry(csi.VolumeHealthErrorType_INACCESSIBLE, strings.Repeat("A", 257), "z"),
			},
			want: "DataLoss (DataLoss): y; Degraded (Degraded): x; Inaccessible (Inaccessible): z", count: 3,
		},
		"Many": {reason: "the API server takes 16", reported: many, want: "Degraded (R00); Degraded (R01)", count: 16},
	} {
		t.Run(name, func(t *testing.T) {
			h := healthOf(&csi.VolumeHealth{HealthStatuses: test.reported})
			if got := describe(h.problems); !strings.HasPrefix(got, test.want) || len(h.problems) != test.count || len(h.unknown) != test.unknown {
				t.Errorf("%s: got %d problems %q and %d unknown, want %d, %q and %d", test.reason, len(h.problems), got, len(h.unknown), test.count, test.want, test.unknown)
			}
		})
	}
	long := healthOf(&csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{entry(csi.VolumeHealthErrorType_DEGRADED, "A", strings.Repeat("é", 2000))}})
	if got := len(long.problems[0].Message); got > maxMessage {
		t.Errorf("a message has %d bytes, want at most %d", got, maxMessage)
	}
}

// withUnknown returns the status of a volume with fields that the types of CSI v1.13 do not have.
func withUnknown(encoded ...byte) *csi.ListVolumesResponse_VolumeStatus {
	status := &csi.ListVolumesResponse_VolumeStatus{}
	status.ProtoReflect().SetUnknown(encoded)
	return status
}

func TestConditionOf(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		status proto.Message
		want   []corev1.VolumeHealthCondition
		err    error
		fails  bool
	}{
		"Normal":    {reason: "false is not encoded", status: withUnknown(2<<3|2, 4, 2<<3|2, 2, 'o', 'k')},
		"Empty":     {reason: "neither is an empty text", status: withUnknown(2<<3|2, 0)},
		"Abnormal":  {reason: "field 2 of the status, fields 1 and 2 of it", status: withUnknown(2<<3|2, 6, 1<<3, 1, 2<<3|2, 2, 'n', 'o'), want: []corev1.VolumeHealthCondition{{Message: "no"}}},
		"Textless":  {reason: "the text is optional for a reader", status: withUnknown(2<<3|2, 2, 1<<3, 1), want: []corev1.VolumeHealthCondition{{}}},
		"Missing":   {reason: "no answer is no evidence", status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n"}}, err: errNoCondition},
		"NoStatus":  {reason: "the same", status: (*csi.ListVolumesResponse_VolumeStatus)(nil), err: errNoCondition},
		"Truncated": {reason: "a broken answer is an error", status: withUnknown(2<<3|2, 9, 1), fails: true},
		"Garbage":   {reason: "a broken answer is an error", status: withUnknown(2<<3|2, 2, 1<<3, 0x80), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := conditionOf(test.status)
			if test.err != nil && !errors.Is(err, test.err) || (err != nil) != (test.fails || test.err != nil) {
				t.Errorf("%s: error %v", test.reason, err)
			}
			if diff := cmp.Diff(test.want, h.problems); err == nil && diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

// FuzzConditionOf reads whatever a driver sends.
func FuzzConditionOf(f *testing.F) {
	f.Add([]byte{2<<3 | 2, 6, 1 << 3, 1, 2<<3 | 2, 2, 'n', 'o'})
	f.Add([]byte{2<<3 | 2, 9, 1})
	f.Fuzz(func(t *testing.T, encoded []byte) {
		if h, err := conditionOf(withUnknown(encoded...)); err != nil && len(h.problems) > 0 && h.problems[0].Message != "" {
			t.Errorf("an error, and nevertheless %q", h.problems[0].Message)
		}
	})
}

func TestNext(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	degraded := health{problems: []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDegraded, Reason: "A", Message: "1 error"}}}
	reworded := health{problems: []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDegraded, Reason: "A", Message: "2 errors"}}}
	worse := health{problems: append([]corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDataLoss, Reason: "B"}}, degraded.problems...)}
	condition := func(text string) health {
		return health{problems: []corev1.VolumeHealthCondition{{Message: text}}}
	}
	reported := func(h health, ago time.Duration) report {
		r, _ := report{}.next(h, now.Add(-ago))
		return r
	}
	for name, test := range map[string]struct {
		reason string
		before report
		answer health
		event  bool
		text   string
	}{
		"Healthy":       {reason: "nothing was reported, nothing is to be", before: report{}},
		"Abnormal":      {reason: "a transition", answer: degraded, event: true, text: "Degraded (A): 1 error"},
		"Same":          {reason: "no transition", before: reported(degraded, time.Hour), answer: degraded, text: "Degraded (A): 1 error"},
		"Reworded":      {reason: "messages may have numbers", before: reported(degraded, time.Hour), answer: reworded, text: "Degraded (A): 1 error"},
		"Worse":         {reason: "other problems are a transition", before: reported(degraded, time.Hour), answer: worse, event: true, text: "DataLoss (B); Degraded (A): 1 error"},
		"WorseSoon":     {reason: "events about one volume keep a distance", before: reported(degraded, time.Minute), answer: worse, text: "Degraded (A): 1 error"},
		"Recovered":     {reason: "a transition, at once", before: reported(degraded, time.Second), event: true},
		"Condition":     {reason: "CSI v1.12 has a text only", before: reported(condition("1 error"), time.Hour), answer: condition("2 errors"), event: true, text: "2 errors"},
		"ConditionSoon": {reason: "which may differ each time", before: reported(condition("1 error"), time.Minute), answer: condition("2 errors"), text: "1 error"},
		"Restarted":     {reason: "the text of the former event is known", before: report{abnormal: true, text: "Degraded (A): 1 error"}, answer: degraded, text: "Degraded (A): 1 error"},
		"StatusOnly":    {reason: "the status of the claim is known, the event is gone", before: report{abnormal: true, identity: "Degraded/A"}, answer: degraded, text: "Degraded (A): 1 error"},
		"OtherGeneration": {
			reason: "the driver was upgraded to CSI v1.13", before: reported(condition("1 error"), time.Hour), answer: degraded, event: true, text: "Degraded (A): 1 error",
		},
	} {
		t.Run(name, func(t *testing.T) {
			after, event := test.before.next(test.answer, now)
			if event != test.event || after.text != test.text || after.abnormal != (test.text != "") {
				t.Errorf("%s: got %+v and an event %t, want %q and %t", test.reason, after, event, test.text, test.event)
			}
			if again, repeated := after.next(test.answer, now.Add(time.Second)); repeated || again != after {
				t.Errorf("%s: the same answer again is news: %+v", test.reason, again)
			}
		})
	}
}

func TestFeatures(t *testing.T) {
	const (
		get, list   = csi.ControllerServiceCapability_RPC_GET_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES
		getH, listH = csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH
	)
	for name, test := range map[string]struct {
		reason                  string
		announced               []csi.ControllerServiceCapability_RPC_Type
		lists, gets, categories bool
	}{
		"Nothing":       {reason: "no health"},
		"VolumesOnly":   {reason: "volumes without conditions", announced: []csi.ControllerServiceCapability_RPC_Type{get, list}},
		"ConditionOnly": {reason: "no call has it", announced: []csi.ControllerServiceCapability_RPC_Type{conditionCapability}},
		"ListHealth":    {reason: "LIST_VOLUME_HEALTH demands GET_VOLUME_HEALTH", announced: []csi.ControllerServiceCapability_RPC_Type{listH}},
		"Get112":        {reason: "CSI v1.12", announced: []csi.ControllerServiceCapability_RPC_Type{conditionCapability, get}, gets: true},
		"List112":       {reason: "CSI v1.12", announced: []csi.ControllerServiceCapability_RPC_Type{conditionCapability, list}, lists: true},
		"Both112":       {reason: "CSI v1.12", announced: []csi.ControllerServiceCapability_RPC_Type{conditionCapability, list, get}, lists: true, gets: true},
		"Get113":        {reason: "CSI v1.13", announced: []csi.ControllerServiceCapability_RPC_Type{getH}, gets: true, categories: true},
		"Both113":       {reason: "CSI v1.13", announced: []csi.ControllerServiceCapability_RPC_Type{getH, listH}, lists: true, gets: true, categories: true},
		"Generations":   {reason: "the newer says more", announced: []csi.ControllerServiceCapability_RPC_Type{getH, conditionCapability, list, get}, gets: true, categories: true},
	} {
		t.Run(name, func(t *testing.T) {
			info := &csiclient.Info{
				Plugin:     map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true},
				Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{},
			}
			for _, c := range test.announced {
				info.Controller[c] = true
			}
			f := FeaturesOf(info)
			if f.lists() != test.lists || f.gets() != test.gets || f.categories() != test.categories || (f.Check("d") == nil) != (test.lists || test.gets) {
				t.Errorf("%s: %+v lists %t, gets %t, categories %t", test.reason, f, f.lists(), f.gets(), f.categories())
			}
		})
	}
}

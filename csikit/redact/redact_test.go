package redact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/longshore-csi/longshore/csikit/redact"
)

func TestMessage(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     any
		want   string
	}{
		"Empty": {reason: "unset fields are left out", in: &csi.ProbeRequest{}, want: `{}`},
		"Secrets": {
			reason: "secrets keep their keys, in order",
			in:     &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"user": "root", "password": "hunter2"}},
			want:   `{"volume_id":"v","secrets":{"password":"***stripped***","user":"***stripped***"}}`,
		},
		"TokensInContext": {
			reason: "tokens are no field of their own",
			in: &csi.NodePublishVolumeRequest{
				VolumeId:      "v",
				VolumeContext: map[string]string{redact.TokensKey: `{"aud":{"token":"jwt"}}`, "pool": "fast"},
				Secrets:       map[string]string{redact.TokensKey: "jwt"},
			},
			want: `{"volume_id":"v","secrets":{"csi.storage.k8s.io/serviceAccount.tokens":"***stripped***"},"volume_context":{"csi.storage.k8s.io/serviceAccount.tokens":"***stripped***","pool":"fast"}}`,
		},
		"Nested": {
			reason: "messages, enums, booleans and empty messages",
			in: &csi.ControllerPublishVolumeRequest{
				VolumeId: "v", Readonly: true,
				VolumeCapability: &csi.VolumeCapability{
					AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				},
			},
			want: `{"volume_id":"v","volume_capability":{"block":{},"access_mode":{"mode":"SINGLE_NODE_WRITER"}},"readonly":true}`,
		},
		"Lists": {
			reason: "lists of messages and of strings",
			in: &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{
				{Volume: &csi.Volume{VolumeId: "a", CapacityBytes: 5}, Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n1", "n2"}}},
				{},
			}},
			want: `{"entries":[{"volume":{"capacity_bytes":5,"volume_id":"a"},"status":{"published_node_ids":["n1","n2"]}},{}]}`,
		},
		"UnknownEnum": {
			reason: "a value of a later specification is a number",
			in:     &csi.VolumeCapability_AccessMode{Mode: 99},
			want:   `{"mode":99}`,
		},
		"Wrappers":   {reason: "wrapped values", in: &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, want: `{"ready":{"value":true}}`},
		"Timestamp":  {reason: "messages of protobuf itself", in: &csi.Snapshot{SnapshotId: "s", CreationTime: &timestamppb.Timestamp{Seconds: 7}}, want: `{"snapshot_id":"s","creation_time":{"seconds":7}}`},
		"Bytes":      {reason: "bytes are counted", in: wrapperspb.Bytes([]byte("abc")), want: `{"value":"3 bytes"}`},
		"Escapes":    {reason: "text cannot forge lines", in: &csi.DeleteVolumeRequest{VolumeId: "a\"b\\c\nd\te\x01f\x7fg\xffh ü"}, want: `{"volume_id":"a\"b\\c\nd\te\u0001f\u007fg�h ü"}`},
		"NilMessage": {reason: "a typed nil", in: (*csi.ProbeRequest)(nil), want: `null`},
		"Nil":        {reason: "nothing", in: nil, want: `null`},
		"NoMessage":  {reason: "it does not say which parts are secret", in: map[string]string{"password": "hunter2"}, want: `"map[string]string"`},
		"NoError":    {reason: "nor in an error", in: errors.New("hunter2"), want: `"*errors.errorString"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := redact.Message(c.in).String()
			if got != c.want {
				t.Errorf("%s:\n got %s\nwant %s", c.reason, got, c.want)
			}
			if !json.Valid([]byte(got)) {
				t.Errorf("%s: not JSON: %s", c.reason, got)
			}
		})
	}
}

// Every message of the specification, with every string set to a secret
// marker where the specification says csi_secret: no marker comes out.
func TestNoSecretOfTheSpecification(t *testing.T) {
	const marker = "hunter2"
	secrets := 0
	messages := csi.File_csi_proto.Messages()
	for i := range messages.Len() {
		md := messages.Get(i)
		fields := md.Fields()
		for j := range fields.Len() {
			fd := fields.Get(j)
			if secret, _ := proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool); !secret {
				continue
			}
			secrets++
			m := newMessage(t, md)
			if !fd.IsMap() {
				t.Fatalf("%s.%s is a secret that is no map: teach this test", md.Name(), fd.Name())
			}
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString(marker))
			if got := redact.Message(m.Interface()).String(); strings.Contains(got, marker) || !strings.Contains(got, redact.Stripped) {
				t.Errorf("%s.%s: %s", md.Name(), fd.Name(), got)
			}
		}
	}
	if secrets < 10 {
		t.Errorf("only %d secret fields were found: the option is not read", secrets)
	}
}

func newMessage(t *testing.T, md protoreflect.MessageDescriptor) protoreflect.Message {
	t.Helper()
	var found protoreflect.Message
	registered(func(m proto.Message) {
		if m.ProtoReflect().Descriptor() == md {
			found = m.ProtoReflect().New()
		}
	})
	if found == nil {
		t.Fatalf("message %s is not in the list of this test", md.Name())
	}
	return found
}

// registered calls f with one of each request, all that can have secrets.
func registered(f func(proto.Message)) {
	for _, server := range []any{(*csi.ControllerServer)(nil), (*csi.NodeServer)(nil), (*csi.GroupControllerServer)(nil), (*csi.SnapshotMetadataServer)(nil)} {
		iface := reflect.TypeOf(server).Elem()
		for i := range iface.NumMethod() {
			for j := range iface.Method(i).Type.NumIn() {
				if m, ok := reflect.Zero(iface.Method(i).Type.In(j)).Interface().(proto.Message); ok {
					f(m)
				}
			}
		}
	}
}

func TestLimited(t *testing.T) {
	m := &csi.DeleteVolumeRequest{VolumeId: "abcdefghij"}
	full := redact.Message(m).String()
	cases := map[string]struct {
		reason string
		limit  int
		want   string
	}{
		"None":     {reason: "zero means no limit", want: full},
		"Negative": {reason: "nor does a negative one limit", limit: -1, want: full},
		"Exact":    {reason: "what fits is whole", limit: len(full), want: full},
		"Cut":      {reason: "what does not fit is marked", limit: 5, want: full[:5] + "..."},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := redact.Limited(m, c.limit).String(); got != c.want {
				t.Errorf("%s: got %s, want %s", c.reason, got, c.want)
			}
		})
	}
}

func manyVolumes(n int) *csi.ListVolumesResponse {
	reply := &csi.ListVolumesResponse{}
	for i := range n {
		reply.Entries = append(reply.Entries, &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{
			VolumeId: fmt.Sprintf("vol-%d", i), VolumeContext: map[string]string{"pool": "fast"},
		}})
	}
	return reply
}

// Cutting bounds the work, not only the output.
func TestLimitBoundsWork(t *testing.T) {
	large, limited := manyVolumes(5_000), func(m any) float64 {
		return testing.AllocsPerRun(5, func() { _ = redact.Limited(m, 200).String() })
	}
	if small, big := limited(manyVolumes(10)), limited(large); big > 2*small {
		t.Errorf("cutting a large message allocates %v times, a small one %v times", big, small)
	}
}

// A value that is not printed costs nothing but itself.
func TestLazy(t *testing.T) {
	m := manyVolumes(10_000)
	logger := logr.FromSlogHandler(slog.NewTextHandler(io.Discard, nil))
	got := testing.AllocsPerRun(10, func() { logger.V(5).Info("call", "response", redact.Message(m)) })
	if got > 3 {
		t.Errorf("a log line that is not written allocates %v times, want at most 3", got)
	}
}

func TestLoggers(t *testing.T) {
	m := &csi.DeleteVolumeRequest{Secrets: map[string]string{"k": "hunter2"}}
	cases := map[string]struct {
		reason string
		log    func(io.Writer)
	}{
		"SlogText": {reason: "slog as text", log: func(w io.Writer) {
			slog.New(slog.NewTextHandler(w, nil)).Info("call", "request", redact.Message(m))
		}},
		"SlogJSON": {reason: "slog as JSON", log: func(w io.Writer) {
			slog.New(slog.NewJSONHandler(w, nil)).Info("call", "request", redact.Message(m))
		}},
		"Logr": {reason: "logr over slog", log: func(w io.Writer) {
			logr.FromSlogHandler(slog.NewJSONHandler(w, nil)).Info("call", "request", redact.Message(m))
		}},
		"Fmt": {reason: "fmt", log: func(w io.Writer) { fmt.Fprintf(w, "%v %s", redact.Message(m), redact.Message(m)) }},
		"Marshaler": {reason: "logr's own interface", log: func(w io.Writer) {
			fmt.Fprint(w, redact.Message(m).(logr.Marshaler).MarshalLog())
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			c.log(&out)
			if got := out.String(); !strings.Contains(got, redact.Stripped) || strings.Contains(got, "hunter2") {
				t.Errorf("%s: %s", c.reason, got)
			}
		})
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a\"b", "\x00\x1f\x7f", "\xff", "ü\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := redact.Message(&csi.DeleteVolumeRequest{VolumeId: s}).String()
		var back struct {
			VolumeID string `json:"volume_id"`
		}
		if err := json.Unmarshal([]byte(text), &back); err != nil {
			t.Fatalf("%q gives %s: %v", s, text, err)
		}
		if want := strings.ToValidUTF8(s, "\uFFFD"); strings.ReplaceAll(back.VolumeID, "\uFFFD", "") != strings.ReplaceAll(want, "\uFFFD", "") {
			t.Errorf("%q comes back as %q", s, back.VolumeID)
		}
		if strings.ContainsAny(text, "\n\r") {
			t.Errorf("%q gives more than one line: %q", s, text)
		}
	})
}

func BenchmarkMessage(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("Volumes%d", n), func(b *testing.B) {
			m := manyVolumes(n)
			b.ReportAllocs()
			for b.Loop() {
				_ = redact.Message(m).String()
			}
		})
	}
}

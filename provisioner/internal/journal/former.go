package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// maxMissing is how many Leases of version 1 may be missing before the last one.
const maxMissing = 2

// This file reads records of version 1 in Leases (docs/adr/0006), which are moved to the Leases of this version.

// formerDocument is a document of version 1: what requests have in common is stored once, in Parts, by digest.
type formerDocument struct {
	Version int                        `json:"version"`
	Records []formerRecord             `json:"records"`
	Parts   map[string]json.RawMessage `json:"parts"`
}

// formerRecord is a record of version 1; see record. A star in Volume replaces the UID.
type formerRecord struct {
	UID       types.UID `json:"uid"`
	Volume    string    `json:"volume"`
	Claim     string    `json:"claim"`
	ClaimPart string    `json:"claimPart"`
	Since     int64     `json:"since"`
	Bytes     int64     `json:"bytes"`
	Named     bool      `json:"named"`
	Request   string    `json:"request"`
	Secret    string    `json:"secret"`
	Segment   string    `json:"segment"`
	Source    string    `json:"source"`
}

// readFormer adds the records of the Leases of version 1, and returns the names of these Leases. As many as may be missing are read at a time.
func (j *Journal) readFormer(ctx context.Context, records map[types.UID]record) (leases []string, err error) {
	for n, missing := 0, 0; missing <= maxMissing; {
		found := make([]*coordinationv1.Lease, maxMissing+1-missing)
		var reading errgroup.Group
		for i := range found {
			reading.Go(func() error {
				lease, err := j.getLease(ctx, fmt.Sprintf("%s-%d", j.cfg.Name, n+i))
				if apierrors.IsNotFound(err) {
					return nil
				}
				if err != nil {
					return err
				}
				if _, err := decode(lease.Annotations[Annotation]); err != nil { // else it is of this version: that of node "a-0" has such a name beside that of node "a"
					found[i] = lease
				}
				return nil
			})
		}
		if err := reading.Wait(); err != nil {
			return nil, err
		}
		n += len(found)
		for _, lease := range found {
			if lease == nil {
				missing++
				continue
			}
			var d formerDocument
			if err := json.Unmarshal([]byte(lease.Annotations[Annotation]), &d); err != nil || d.Version != 1 {
				klog.FromContext(ctx).Error(err, "Records of volumes in progress of a former version cannot be read: look for these volumes in the storage system, then delete the Lease", logging.KeyLease, lease.Name)
				continue
			}
			leases = append(leases, lease.Name)
			for _, r := range d.Records {
				records[r.UID] = r.record(d.Parts, time.Now())
			}
		}
	}
	return leases, nil
}

// record returns the record in the present format. Version 1 does not say who wrote a record: one that is not from the last hour is not acted on.
func (f formerRecord) record(parts map[string]json.RawMessage, now time.Time) record {
	r := record{UID: f.UID, Volume: strings.Replace(f.Volume, "*", string(f.UID), 1), Claim: f.Claim, Since: time.Unix(f.Since, 0).UTC()}
	var text []byte
	var segments map[string]string
	var source struct {
		volume.SourceRef

		Content []byte
	}
	request, content := &csi.CreateVolumeRequest{}, &csi.VolumeContentSource{}
	err := cmp.Or(
		readPart(parts, f.ClaimPart, &r.Claim), readPart(parts, f.Secret, &r.Secret), readPart(parts, f.Segment, &segments),
		readPart(parts, f.Request, &text), readPart(parts, f.Source, &source), // before they are decoded
		proto.Unmarshal(text, request), proto.Unmarshal(source.Content, content),
	)
	request.Name = r.Volume
	request.CapacityRange = &csi.CapacityRange{RequiredBytes: f.Bytes, LimitBytes: request.GetCapacityRange().GetLimitBytes()}
	if segments != nil {
		segment := []*csi.Topology{{Segments: segments}}
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: segment, Preferred: segment}
	}
	if f.Named {
		request.Parameters = volume.WithMetadata(request.GetParameters(), r.claim(), r.Volume)
	}
	if f.Source != "" {
		request.VolumeContentSource, r.Source = content, &source.SourceRef
	}
	if err == nil {
		r.Request, err = protojson.Marshal(request)
	}
	if age := now.Sub(r.Since); age > trustedAge || age < -clockSkew {
		r.Reported = fmt.Sprintf("a former version has recorded it at %s, more than %v ago", r.Since.Format(time.RFC3339), trustedAge)
	}
	if err != nil {
		r.Reported = "the record of a former version cannot be read: " + err.Error()
	}
	return r
}

// readPart reads a part into value; no digest, no part.
func readPart(parts map[string]json.RawMessage, digest string, value any) error {
	if digest == "" {
		return nil
	}
	text, ok := parts[digest]
	if !ok {
		return fmt.Errorf("part %q is missing", digest)
	}
	return json.Unmarshal(text, value)
}

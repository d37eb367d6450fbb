package grpcapi

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerClone is the part that makes volumes of others. A real driver that
// cannot copy a volume while it is used leaves it out.
type controllerClone struct{}

func (controllerClone) announceController() []controllerRPC {
	return []controllerRPC{csi.ControllerServiceCapability_RPC_CLONE_VOLUME}
}

// fromVolume is the source of a clone.
func fromVolume(from *csi.VolumeContentSource) (volume.Source, bool, error) {
	source, ok := from.GetType().(*csi.VolumeContentSource_Volume)
	if !ok {
		return volume.Source{}, false, nil
	}
	id, err := parseField("volume_content_source.volume.volume_id", source.Volume.GetVolumeId())
	return volume.Source{Volume: id}, true, err
}

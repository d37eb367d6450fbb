{{/* What the author of this chart sets, and its users do not: see values.yaml of csi-driver-lib. */}}
{{- define "hostpath.own" -}}
rolePrefix: "longshore:"
provisionOnNodes: false
driver:
  capabilities: [CREATE_DELETE_VOLUME, PUBLISH_UNPUBLISH_VOLUME, EXPAND_VOLUME, MODIFY_VOLUME, CREATE_DELETE_SNAPSHOT, GET_CAPACITY, SNAPSHOT_METADATA_SERVICE, GET_VOLUME_HEALTH]
  container: hostpath
  image: hostpathplugin
  stateMount: /csi-data-dir
csiDriver:
  podInfoOnMount: true # for inline volumes, of which the driver knows the pod
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent{{ if .Values.inlineVolumes.enabled }}, Ephemeral{{ end }}]
controller:
  stateDir: true
  driver:
    args:
    - --drivername={{ .Values.driver.name }}
    - --mode=controller
    - --endpoint=unix:///csi/csi.sock
    - --statedir=/csi-data-dir
    - --enable-attach
    - --enable-controller-modify-volume
    {{- if and .Values.snapshots .Values.snapshotMetadata.enabled }}
    - --enable-snapshot-metadata
    {{- end }}
    - --http-endpoint=:9810
    - --v={{ .Values.logLevel }}
    # Root with the rights over other users' files, and nothing else: volumes are removed with all that pods have put into them.
    addCapabilities: [CHOWN, DAC_OVERRIDE, FOWNER, FSETID, MKNOD, SETFCAP]
node:
  topology: {}
  driver:
    args:
    - --drivername={{ .Values.driver.name }}
    - --mode=node
    - --endpoint=unix:///csi/csi.sock
    - --statedir=/csi-data-dir
    - --nodeid=$(NODE_NAME)
    - --enable-attach
    - --http-endpoint=:9810
    - --v={{ .Values.logLevel }}
    - --enable-inline-volumes={{ .Values.inlineVolumes.enabled }}
    {{- if .Values.inlineVolumes.enabled }}
    - --max-inline-volume-size={{ .Values.inlineVolumes.maxSize }}
    {{- with .Values.inlineVolumes.pools }}
    - --inline-volume-pools={{ join "," . }}
    {{- end }}
    {{- end }}
{{- end -}}

{{/* Not empty if the release has a snapshot-controller. */}}
{{- define "hostpath.snapshotController" -}}
{{- if and .Values.snapshots .Values.snapshotController.install }}yes{{ end -}}
{{- end -}}

{{/* Not empty if the release installs or upgrades a definition: the cluster has none, or has that of this release, and not a newer one. */}}
{{- define "hostpath.ownsCRD" -}}
{{- $root := index . 0 -}}
{{- $new := index . 1 -}}
{{- if $root.Values.snapshotCRDs.install -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $new.metadata.name -}}
{{- $notes := dig "metadata" "annotations" dict $there | default dict -}}
{{- $owner := printf "%s/%s" (get $notes "meta.helm.sh/release-namespace") (get $notes "meta.helm.sh/release-name") -}}
{{- $key := "csi.longshore.dev/crd-revision" -}}
{{- if not $there -}}
new
{{- else if and (eq $owner (printf "%s/%s" $root.Release.Namespace $root.Release.Name)) (le (int (get $notes $key)) (int (get $new.metadata.annotations $key))) -}}
upgraded
{{- end -}}
{{- end -}}
{{- end -}}
